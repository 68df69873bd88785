"""The loss laws, on the engines of this repository."""

from holdfast.testing.conformance.test_loss_laws import *
