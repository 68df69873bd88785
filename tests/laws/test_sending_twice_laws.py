"""The sending twice laws, on the engines of this repository."""

from holdfast.testing.conformance.test_sending_twice_laws import *
