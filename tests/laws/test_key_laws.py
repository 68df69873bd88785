"""The key laws, on the engines of this repository."""

from holdfast.testing.conformance.test_key_laws import *
