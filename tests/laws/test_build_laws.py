"""The build laws, on the engines of this repository."""

from holdfast.testing.conformance.test_build_laws import *
