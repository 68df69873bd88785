"""The semaphore laws, on the engines of this repository."""

from holdfast.testing.conformance.test_semaphore_laws import *
