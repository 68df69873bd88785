"""The carried laws, on the engines of this repository."""

from holdfast.testing.conformance.test_carried_laws import *
