"""The time from a release to the next grant, measured and checked where no fault was active (X7).

Only hand-overs that no fault can have affected count. A waiter that waited before the release is woken by a message; a
client that polls instead is found here, however often it polls.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.testing.checkers import Violation
from holdfast.testing.hold_spans import hold_spans_by_name
from tests.support.waiting_order import excuses, waits_by_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.testing.history import HistoryEvent
    from tests.support.waiting_order import Bounds, Wait

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class WakeUp:
    """One hand-over: the release, and the waiter that was granted next."""

    released: HistoryEvent
    wait: Wait
    length_ns: int


def wake_ups(events: Sequence[HistoryEvent], bounds: Bounds) -> list[WakeUp]:
    """Return the hand-overs to a worker that waited, where no fault was active then or shortly before.

    A broken connection is opened again; a dead waiter stays in the waiting line until its heartbeat expires, or until
    the engine detects its death.
    """
    dead_waiter_s = bounds.idle_s if bounds.deaths_are_seen else bounds.heartbeat_s
    faults = [
        replace(fault, end_ns=fault.end_ns + (dead_waiter_s if fault.kind == "kill" else bounds.recovery_s) * NS)
        for fault in excuses(events)
    ]
    claims = hold_spans_by_name(events)
    found = []
    for name, waits in waits_by_name(events).items():
        ends = (claim.closed for claim in claims.get(name, ()))
        released = sorted((end for end in ends if end is not None and end.kind == "released"), key=_at_ns)
        for wait in waits:
            if wait.in_line is None or wait.ended is None or wait.ended.kind != "granted":
                continue
            place = bisect_left(released, wait.ended.at_ns, key=_at_ns)
            if not place or released[place - 1].at_ns < wait.in_line.at_ns:
                continue
            last = released[place - 1]
            if not any(fault.overlaps(last.at_ns, wait.ended.at_ns) for fault in faults):
                found.append(WakeUp(last, wait, wait.ended.at_ns - last.at_ns))
    return found


def wake_ups_ns(events: Sequence[HistoryEvent], bounds: Bounds) -> list[int]:
    """Return the lengths of all hand-overs without faults."""
    return [wake_up.length_ns for wake_up in wake_ups(events, bounds)]


def slow_wake_ups(events: Sequence[HistoryEvent], bounds: Bounds, allowed_s: float = 0.75) -> list[Violation]:
    """Find hand-overs without faults that took longer than `allowed_s` (X7).

    `allowed_s` is for the machine: each of the three processes of a hand-over (the holder, the engine, the waiter) may
    be late for a quarter of a second before that is recorded as a fault.
    """
    return [
        Violation(
            "slow_wake_ups",
            f"{wake_up.wait.requested.worker} waited for {wake_up.released.name!r} and had it "
            f"{wake_up.length_ns / 1e6:.0f} ms after its release; {allowed_s * 1000:.0f} ms are allowed",
            tuple(
                one
                for one in (wake_up.wait.requested, wake_up.wait.in_line, wake_up.released, wake_up.wait.ended)
                if one
            ),
        )
        for wake_up in wake_ups(events, bounds)
        if wake_up.length_ns > allowed_s * NS
    ]


def _at_ns(event: HistoryEvent) -> int:
    return event.at_ns
