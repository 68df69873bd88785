"""The reasons of `Unavailable` and `LeaseLost`: enums that keep a reason which they do not know."""

import pickle

import pytest

from holdfast import types
from holdfast.errors import LASTING, PASSING, LeaseLost, LossReason, Unavailable, UnavailableReason

ERRORS = [
    (Unavailable("engine", "on fire", "the disk"), UnavailableReason, "on fire"),
    (LeaseLost("x", 7, "stolen", detail="by night"), LossReason, "stolen"),
]


@pytest.mark.parametrize(("error", "kind", "reason"), ERRORS)
def test_an_unknown_reason_does_not_hide_the_error(error, kind, reason):
    """A third party's engine, or a newer server, may report a reason of its own."""
    assert (error.reason, type(error.reason)) == (reason, kind)
    assert reason in str(error)
    assert pickle.loads(pickle.dumps(error)).reason == reason
    assert getattr(types, kind.__name__) is kind


def test_no_reason_passes_by_itself_and_lasts():
    """A waiter goes on for one set, and gives up for the other."""
    assert not PASSING & LASTING
    assert Unavailable("engine", "on fire").retryable
