"""The inspection laws, on the engines of this repository."""

from holdfast.testing.conformance.test_inspection_laws import *
