"""The laws of user code inside the library, on the engines of this repository."""

from holdfast.testing.conformance.test_user_code_laws import *
