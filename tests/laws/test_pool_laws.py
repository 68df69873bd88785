"""The pool laws, on the engines of this repository."""

from holdfast.testing.conformance.test_pool_laws import *
