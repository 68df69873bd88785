"""The once laws, on the engines of this repository."""

from holdfast.testing.conformance.test_once_laws import *
