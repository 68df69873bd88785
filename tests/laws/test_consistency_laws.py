"""The consistency laws, on the engines of this repository."""

from holdfast.testing.conformance.test_consistency_laws import *
