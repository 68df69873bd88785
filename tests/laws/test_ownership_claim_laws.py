"""The owner claim laws, on the engines of this repository."""

from holdfast.testing.conformance.test_ownership_claim_laws import *
