"""The queue loss laws, on the engines of this repository."""

from holdfast.testing.conformance.test_queue_loss_laws import *
