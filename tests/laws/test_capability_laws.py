"""The capability laws, on the engines of this repository."""

from holdfast.testing.conformance.test_capability_laws import *
