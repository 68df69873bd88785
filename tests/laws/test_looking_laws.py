"""The looking laws, on the engines of this repository."""

from holdfast.testing.conformance.test_looking_laws import *
