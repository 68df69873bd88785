"""The handler thread laws, on the engines of this repository."""

from holdfast.testing.conformance.test_handler_thread_laws import *
