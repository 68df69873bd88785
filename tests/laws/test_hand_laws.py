"""The hand laws, on the engines of this repository."""

from holdfast.testing.conformance.test_hand_laws import *
