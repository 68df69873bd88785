"""The claim laws, on the engines of this repository."""

from holdfast.testing.conformance.test_claim_laws import *
