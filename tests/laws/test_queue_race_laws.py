"""The queue race laws, on the engines of this repository."""

from holdfast.testing.conformance.test_queue_race_laws import *
