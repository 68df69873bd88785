"""The blame laws, on the engines of this repository."""

from holdfast.testing.conformance.test_blame_laws import *
