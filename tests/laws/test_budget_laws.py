"""The budget laws, on the engines of this repository."""

from holdfast.testing.conformance.test_budget_laws import *
