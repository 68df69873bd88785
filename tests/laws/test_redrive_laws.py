"""The redrive laws, on the engines of this repository."""

from holdfast.testing.conformance.test_redrive_laws import *
