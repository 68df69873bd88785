"""The building laws, on the engines of this repository."""

from holdfast.testing.conformance.test_building_laws import *
