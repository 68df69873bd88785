"""The observer laws, on the engines of this repository."""

from holdfast.testing.conformance.test_observer_laws import *
