"""The registry transfer laws, on the engines of this repository."""

from holdfast.testing.conformance.test_registry_transfer_laws import *
