"""The delivery laws, on the engines of this repository."""

from holdfast.testing.conformance.test_delivery_laws import *
