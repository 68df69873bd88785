"""The owner cost laws, on the engines of this repository."""

from holdfast.testing.conformance.test_owner_cost_laws import *
