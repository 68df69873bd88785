"""The worker failure laws, on the engines of this repository."""

from holdfast.testing.conformance.test_worker_failure_laws import *
