"""The owner claim laws, on the engines of this repository."""

from holdfast.testing.conformance.test_owner_claim_laws import *
