"""The rwlock laws, on the engines of this repository."""

from holdfast.testing.conformance.test_rwlock_laws import *
