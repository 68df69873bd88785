"""The input laws, on the engines of this repository."""

from holdfast.testing.conformance.test_input_laws import *
