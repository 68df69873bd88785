"""The closing laws, on the engines of this repository."""

from holdfast.testing.conformance.test_closing_laws import *
