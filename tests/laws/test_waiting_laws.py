"""The waiting laws, on the engines of this repository."""

from holdfast.testing.conformance.test_waiting_laws import *
