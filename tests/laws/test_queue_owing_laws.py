"""The queue owing laws, on the engines of this repository."""

from holdfast.testing.conformance.test_queue_owing_laws import *
