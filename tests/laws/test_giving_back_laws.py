"""The giving back laws, on the engines of this repository."""

from holdfast.testing.conformance.test_giving_back_laws import *
