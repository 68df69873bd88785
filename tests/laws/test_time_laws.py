"""The time laws, on the engines of this repository."""

from holdfast.testing.conformance.test_time_laws import *
