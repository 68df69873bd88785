"""The queue laws, on the engines of this repository."""

from holdfast.testing.conformance.test_queue_laws import *
