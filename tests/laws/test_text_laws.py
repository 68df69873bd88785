"""The text laws, on the engines of this repository."""

from holdfast.testing.conformance.test_text_laws import *
