"""The limit laws, on the engines of this repository."""

from holdfast.testing.conformance.test_limit_laws import *
