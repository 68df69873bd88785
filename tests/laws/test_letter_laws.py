"""The letter laws, on the engines of this repository."""

from holdfast.testing.conformance.test_letter_laws import *
