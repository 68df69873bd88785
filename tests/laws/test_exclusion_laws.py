"""The exclusion laws, on the engines of this repository."""

from holdfast.testing.conformance.test_exclusion_laws import *
