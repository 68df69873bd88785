"""The directory laws, on the engines of this repository."""

from holdfast.testing.conformance.test_directory_laws import *
