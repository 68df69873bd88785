"""The owner end laws, on the engines of this repository."""

from holdfast.testing.conformance.test_owner_end_laws import *
