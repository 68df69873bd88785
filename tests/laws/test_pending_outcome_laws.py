"""The pending outcome laws, on the engines of this repository."""

from holdfast.testing.conformance.test_pending_outcome_laws import *
