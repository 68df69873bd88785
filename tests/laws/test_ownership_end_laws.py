"""The owner end laws, on the engines of this repository."""

from holdfast.testing.conformance.test_ownership_end_laws import *
