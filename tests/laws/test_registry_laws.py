"""The registry laws, on the engines of this repository."""

from holdfast.testing.conformance.test_registry_laws import *
