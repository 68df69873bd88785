"""The worker laws, on the engines of this repository."""

from holdfast.testing.conformance.test_worker_laws import *
