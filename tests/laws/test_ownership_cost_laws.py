"""The owner cost laws, on the engines of this repository."""

from holdfast.testing.conformance.test_ownership_cost_laws import *
