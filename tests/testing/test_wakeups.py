"""Hand-overs: which are measured, and which are reported as slow."""

from __future__ import annotations

import pytest

from holdfast.testing import HistoryEvent
from tests.support.waiting_order import Bounds
from tests.support.wakeups import slow_wake_ups, wake_ups_ns

S = 1_000_000_000
PIDS = {"a": 1, "b": 2, "c": 3, "stage": 9}
BOUNDS = Bounds(ttl_s=1)


def event(at_s, worker, kind, name="x", **fields):
    return HistoryEvent(at_ns=int(at_s * S), worker=worker, pid=PIDS[worker], kind=kind, name=name, **fields)


def fault(since_s, until_s, kind, target=""):
    return [
        event(since_s, "stage", "fault", name=target, value=int(since_s * 1000), detail=kind),
        event(until_s, "stage", "healed", name=target, value=int(since_s * 1000), detail=kind),
    ]


def granted(at_s, worker):
    return event(at_s, worker, "granted", fence=int(at_s * 1000), token=worker, until_ns=30 * S)


def handed_over(after_s):
    """`a` holds, `b` and `c` wait; each is granted that long after the release before it."""
    return [
        granted(1, "a"),
        event(2, "b", "requested"),
        event(2.1, "b", "waiting"),
        event(3, "c", "requested"),
        event(3.1, "c", "waiting"),
        event(14, "a", "released", token="a"),
        granted(14 + after_s, "b"),
        event(16, "b", "released", token="b"),
        granted(16 + after_s, "c"),
    ]


def test_a_wake_up_is_the_time_from_release_to_grant():
    """Only of workers that waited at the release; a later worker finds the name free."""
    assert wake_ups_ns(handed_over(0.1), BOUNDS) == [pytest.approx(0.1 * S), pytest.approx(0.1 * S)]

    came_later = [
        event(15.9, "c", "requested") if (one.kind, one.worker) == ("requested", "c") else one
        for one in handed_over(0.1)
    ]
    came_later = [one for one in came_later if (one.worker, one.kind) != ("c", "waiting")]
    assert len(wake_ups_ns(came_later, BOUNDS)) == 1


def test_a_slow_wake_up_without_a_fault_is_reported():
    """A client that polls once a second is granted within the bounds of a free name, and still too late."""
    assert slow_wake_ups(handed_over(0.7), BOUNDS) == []

    first, _ = slow_wake_ups(handed_over(0.8), BOUNDS)
    assert "b waited for 'x' and had it 800 ms after its release" in first.sentence
    assert [shown.kind for shown in first.events] == ["requested", "waiting", "released", "granted"]


@pytest.mark.parametrize(
    ("injected", "accused"),
    [
        (fault(14.1, 14.2, "slow server"), 0),
        (fault(13, 13.5, "cut", "c"), 0),
        (fault(7, 9.5, "half-open", "b"), 2),
        (fault(2, 20, "cancellation storm", "b"), 2),
        ([event(8, "stage", "died", name="")], 1),
    ],
    ids=["just then", "shortly before", "long ago", "what harms nobody", "a dead waiter in the queue"],
)
def test_only_a_fault_then_or_shortly_before_excuses_a_slow_wake_up(injected, accused):
    """A connection needs a moment to be opened again, and a dead waiter leaves with its heartbeat."""
    assert len(slow_wake_ups([*handed_over(0.8), *injected], BOUNDS)) == accused


def test_a_dead_waiter_is_no_excuse_where_the_engine_detects_it():
    """SQLite skips it at once."""
    history = [*handed_over(0.8), event(12, "stage", "died", name="")]

    assert slow_wake_ups(history, BOUNDS) == []
    assert len(slow_wake_ups(history, Bounds(ttl_s=1, deaths_are_seen=True))) == 2
