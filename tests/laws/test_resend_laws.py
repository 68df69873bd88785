"""The resend laws, on the engines of this repository."""

from holdfast.testing.conformance.test_resend_laws import *
