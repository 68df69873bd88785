"""The telling laws, on the engines of this repository."""

from holdfast.testing.conformance.test_telling_laws import *
