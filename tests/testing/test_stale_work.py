"""Stale work, on small histories made by hand: code that ran after another worker had the lease."""

from __future__ import annotations

import pytest

from holdfast.testing import HistoryEvent
from tests.support.fault_windows import MACHINE, fault_windows
from tests.support.stale_work import UNCHECKED, find_stale_work, late_loss_reports

MS = 1_000_000


def event(at_ms, worker, kind, fence=None, since_ms=None, **fields):
    since_ns = None if since_ms is None else since_ms * MS
    token = None if fence is None else f"t{fence}"
    facts = {"name": "x", "fence": fence, "token": token, "since_ns": since_ns, **fields}
    return HistoryEvent(at_ns=at_ms * MS, worker=worker, pid={"a": 1, "b": 2}[worker], kind=kind, **facts)


def worked(since_ms, until_ms, detail=None):
    return event(until_ms, "a", "worked", fence=1, since_ms=since_ms, detail=detail)


TAKEN_OVER = [event(0, "a", "granted", fence=1), event(1000, "b", "granted", fence=2)]


def test_code_after_the_successors_grant_is_stale_work():
    """Stale work ends when the holder learns of the loss."""
    history = [*TAKEN_OVER, worked(500, 510), worked(1100, 1110), worked(1110, 1120), event(1121, "a", "lost", fence=1)]

    [stale] = find_stale_work(history)

    assert stale.length_ns == 20 * MS
    assert stale.successor.worker == "b"


def test_a_frozen_holder_does_no_stale_work():
    """Only code that ran counts; the holder learned of the loss as soon as it ran again."""
    assert find_stale_work([*TAKEN_OVER, worked(500, 510), event(5000, "a", "lost", fence=1)]) == []


def test_work_under_the_newest_lease_is_not_stale():
    """The lease has no successor."""
    later = event(1500, "b", "worked", fence=2, since_ms=1400)

    assert find_stale_work([*TAKEN_OVER, later]) == []


def test_the_cause_of_stale_work_is_the_fault_that_affected_its_worker():
    """Without such a fault the cause is unknown."""
    history = [*TAKEN_OVER, worked(1100, 1110)]
    frozen = [
        event(600, "b", "fault", name="a", value=1, detail="freeze"),
        event(1090, "b", "healed", name="a", value=1, detail="freeze"),
    ]

    assert [stale.cause for stale in find_stale_work(history)] == ["unknown"]
    assert [stale.cause for stale in find_stale_work([*history, *frozen])] == ["freeze"]


def test_a_holder_that_checks_and_learns_of_its_loss_too_late_is_reported():
    """Many steps, each after a check that passed."""
    steps = [worked(1000 + 10 * step, 1010 + 10 * step) for step in range(1, 60)]

    [violation] = late_loss_reports([*TAKEN_OVER, *steps])

    assert "went on for 590 ms, checking all the time, after b had 'x'" in violation.sentence


def test_a_holder_that_never_checks_is_measured_and_not_reported():
    """It cannot learn of its loss; only a guard stops it."""
    steps = [worked(1000 + 10 * step, 1010 + 10 * step, UNCHECKED) for step in range(1, 60)]
    history = [*TAKEN_OVER, *steps]

    assert late_loss_reports(history) == []
    assert [stale.length_ns for stale in find_stale_work(history)] == [590 * MS]


def test_a_step_or_two_too_many_is_no_violation():
    """The holder checked, was frozen, and went on: no check can prevent that."""
    assert late_loss_reports([*TAKEN_OVER, worked(1100, 1120), event(1121, "a", "lost", fence=1)]) == []


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([event(10, "a", "died", name="")], ("kill", "a", 10, 10)),
        ([event(10, "b", "fault", name="a", since_ms=4, detail=MACHINE)], (MACHINE, "a", 4, 10)),
        ([event(10, "b", "fault", name="a", since_ms=10, until_ns=90 * MS, detail="cut")], ("cut", "a", 10, 90)),
        ([event(10, "b", "fault", name="", value=1, detail="restart")], ("restart", "", 10, float("inf"))),
    ],
    ids=["a death", "recorded afterwards", "no length but effects", "never healed"],
)
def test_a_fault_lasts_from_its_start_to_its_end(events, expected):
    """A fault excuses delays for that long."""
    [window] = fault_windows(events)

    assert (window.kind, window.target, window.start_ns / MS, window.end_ns / MS) == expected
