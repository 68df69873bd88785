"""The owner laws, on the engines of this repository."""

from holdfast.testing.conformance.test_ownership_laws import *
