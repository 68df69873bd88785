"""How long after a release does the next one have the lease? Measured, and judged, where nothing was broken (X7).

The rule: only hand-overs that no fault can have touched. A waiter that was there before the release and is served after
it has heard of it by a message; one that merely looks now and then is caught here, however often it looks.
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

    from holdfast.testing.history import Event
    from tests.support.waiting_order import Bounds, Wait

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class WakeUp:
    """One hand-over: the release, and the waiter that was served next."""

    released: Event
    wait: Wait
    length_ns: int


def wake_ups(events: Sequence[Event], bounds: Bounds) -> list[WakeUp]:
    """Each hand-over to one that had been waiting, where nothing was broken then or shortly before.

    A connection that was broken is dialled again; a dead waiter stands in the queue until its mark falls, or its death
    is seen.
    """
    lie_there_s = bounds.idle_s if bounds.deaths_are_seen else bounds.mark_s
    faults = [
        replace(fault, end_ns=fault.end_ns + (lie_there_s if fault.kind == "kill" else bounds.recovery_s) * NS)
        for fault in excuses(events)
    ]
    claims = hold_spans_by_name(events)
    found = []
    for name, waits in waits_by_name(events).items():
        ends = (claim.closed for claim in claims.get(name, ()))
        released = sorted((end for end in ends if end is not None and end.kind == "released"), key=_at_ns)
        for wait in waits:
            if wait.queued is None or wait.ended is None or wait.ended.kind != "granted":
                continue
            place = bisect_left(released, wait.ended.at_ns, key=_at_ns)
            if not place or released[place - 1].at_ns < wait.queued.at_ns:
                continue
            last = released[place - 1]
            if not any(fault.touches(last.at_ns, wait.ended.at_ns) for fault in faults):
                found.append(WakeUp(last, wait, wait.ended.at_ns - last.at_ns))
    return found


def wake_ups_ns(events: Sequence[Event], bounds: Bounds) -> list[int]:
    """The lengths of all hand-overs, where nothing was broken."""
    return [wake_up.length_ns for wake_up in wake_ups(events, bounds)]


def slow_wake_ups(events: Sequence[Event], bounds: Bounds, allowed_s: float = 0.75) -> list[Violation]:
    """Where nothing was broken, the next one has the lease at once (X7).

    `allowed_s` is the machine's: each of the three that a hand-over needs (who releases, the engine, who waits) may be
    late for a quarter of a second before anybody writes that down as a fault.
    """
    return [
        Violation(
            "slow_wake_ups",
            f"{wake_up.wait.asked.worker} waited for {wake_up.released.name!r} and had it "
            f"{wake_up.length_ns / 1e6:.0f} ms after its release; {allowed_s * 1000:.0f} ms are allowed",
            tuple(
                one for one in (wake_up.wait.asked, wake_up.wait.queued, wake_up.released, wake_up.wait.ended) if one
            ),
        )
        for wake_up in wake_ups(events, bounds)
        if wake_up.length_ns > allowed_s * NS
    ]


def _at_ns(event: Event) -> int:
    return event.at_ns
