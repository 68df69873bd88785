"""The leader laws, on the engines of this repository."""

from holdfast.testing.conformance.test_leader_laws import *
