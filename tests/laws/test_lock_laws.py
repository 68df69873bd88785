"""The lock laws, on the engines of this repository."""

from holdfast.testing.conformance.test_lock_laws import *
