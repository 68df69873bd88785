"""The event laws, on the engines of this repository."""

from holdfast.testing.conformance.test_event_laws import *
