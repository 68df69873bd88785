"""The promise laws, on the engines of this repository."""

from holdfast.testing.conformance.test_promise_laws import *
