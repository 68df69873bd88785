"""The laws of registry mailboxes, on the engines of this repository."""

from holdfast.testing.conformance.test_registry_mailbox_laws import *
