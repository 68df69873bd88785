"""The handing laws, on the engines of this repository."""

from holdfast.testing.conformance.test_handing_laws import *
