"""The soundness laws, on the engines of this repository."""

from holdfast.testing.conformance.test_soundness_laws import *
