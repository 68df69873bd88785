"""The laws of `lock_many`, on the engines of this repository."""

from holdfast.testing.conformance.test_lock_many_laws import *
