"""The worker failing laws, on the engines of this repository."""

from holdfast.testing.conformance.test_worker_failing_laws import *
