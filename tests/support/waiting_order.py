"""Checkers of waiting lines: liveness (X7) and order (X8).

A checker reports no delay that a fault explains. `Bounds` states how much time a fault may cost: a fault that can leave
a lease without a living holder costs one ttl; a worker that recovers uses or returns its lease after a moment. A fault
that ended longer ago explains nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.testing.checkers import Violation
from holdfast.testing.hold_spans import hold_spans_by_name
from tests.support.fault_windows import ALL_WORKERS, MACHINE, STOPPED_IN_GATE, fault_windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.testing.history import HistoryEvent
    from holdfast.testing.hold_spans import HoldSpan
    from tests.support.fault_windows import Window

Span = tuple[float, float]

NS = 1_000_000_000
# A worker that one of these faults affects may have been granted the lease and be unable to use or to release it.
ORPHANING = frozenset(
    {
        "kill",
        "freeze",
        "half-open",
        "slow re-send",
        "late answer",
        "gil stall",
        "loop stall",
        MACHINE,
        STOPPED_IN_GATE,
        "slow server",
        "frozen server",
        "restart",
        "server clock",
        "primary killed",
        "primary frozen",
        "failover",
    }
)
# A worker does not recover from these: its lease lasts until the end of its ttl.
LASTING = frozenset({"kill", "server clock"})
# After these a worker may miss its wake-up until it has noticed the fault and listens again.
_LISTENING_LOST = frozenset({"half-open", "slow re-send", "late answer", "frozen server", "restart", "primary frozen"})
_ENDS = frozenset({"granted", "refused", "died"})
# A release whose detail is this prefix and a worker handed the lease over to that worker.
HANDED_TO = "to "


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a name may stay free while a worker waits for it.

    `idle_s` without faults: an offer that its waiter cannot confirm lasts for a second. Each worker that an orphaning
    fault affected nearby adds `ttl_s`; a dead worker does so only where the engine cannot detect the death, and then
    its place in the waiting line adds `heartbeat_s`, too. A worker that was only cut off or delayed recovers: it has a
    new connection and an answer within `recovery_s`.
    """

    ttl_s: float
    idle_s: float = 1.5
    heartbeat_s: float = 7.0
    recovery_s: float = 4.0
    deaths_are_seen: bool = False

    def allowed_ns(self, faults: Iterable[Window]) -> int:
        """Return how long a name may stay free in a span in which these faults had effects."""
        injected = [fault for fault in faults if self._costs(fault)]
        dead = any(fault.kind == "kill" for fault in injected)
        each: dict[str, float] = {}
        for fault in injected:
            each[fault.target] = max(each.get(fault.target, 0.0), self._lease_s(fault))
        return int((self.idle_s + sum(each.values()) + (self.heartbeat_s if dead else 0)) * NS)

    def excused(self, faults: Iterable[Window]) -> list[Span]:
        """Return the spans in which these faults may have effects; overlapping spans excuse a moment only once."""
        return [
            (
                fault.start_ns,
                fault.end_ns + (self._lease_s(fault) + (self.heartbeat_s if fault.kind == "kill" else 0)) * NS,
            )
            for fault in faults
            if self._costs(fault)
        ]

    def _lease_s(self, fault: Window) -> float:
        """Return how long an unused lease may stay after this fault is over."""
        return self.ttl_s if fault.kind in LASTING else min(self.ttl_s, self.recovery_s)

    def _costs(self, fault: Window) -> bool:
        return fault.kind in ORPHANING and not (fault.kind == "kill" and self.deaths_are_seen)


@dataclass(slots=True)
class Wait:
    """One worker's wait for one name, from `requested` to its answer or its death."""

    requested: HistoryEvent
    in_line: HistoryEvent | None = None
    ended: HistoryEvent | None = None

    @property
    def end_ns(self) -> float:
        return math.inf if self.ended is None else self.ended.at_ns


def waits_by_name(events: Sequence[HistoryEvent]) -> dict[str, list[Wait]]:
    """Return the waits for each name, in the order of the requests. A worker waits for one name at a time."""
    waits: dict[str, list[Wait]] = defaultdict(list)
    open_: dict[tuple[str, int], Wait] = {}
    for event in sorted(events, key=lambda event: event.at_ns):
        who = (event.worker, event.pid)
        if event.kind == "requested":
            open_[who] = Wait(event)
            waits[event.name].append(open_[who])
        elif who in open_ and event.kind == "waiting":
            open_[who].in_line = event
        elif who in open_ and event.kind in _ENDS:
            open_.pop(who).ended = event
    return waits


def idle_with_waiters(events: Sequence[HistoryEvent], bounds: Bounds, now_ns: int | None = None) -> list[Violation]:
    """Find names that stayed free for longer than the bounds allow while a worker waited (X7).

    Time in which a fault affected all workers does not count, nor time in which it affected the waiter. With `now_ns`,
    the history may still grow.
    """
    faults = excuses(events)
    excused = bounds.excused(faults)
    idle_ns = int(bounds.idle_s * NS)
    end_ns = now_ns or max((event.at_ns for event in events), default=0)
    claims = hold_spans_by_name(events)
    down = [(fault.start_ns, fault.end_ns) for fault in faults if fault.target == ALL_WORKERS]
    violations = []
    for name, waits in waits_by_name(events).items():
        taken = merged([*((claim.start_ns, claim.end_ns) for claim in claims.get(name, ())), *down])
        for wait in waits:
            until_ns = min(wait.end_ns, end_ns)
            if until_ns - wait.requested.at_ns <= idle_ns:
                continue
            own = [(fault.start_ns, fault.end_ns) for fault in faults if fault.target == wait.requested.worker]
            idle = _longest_free(wait.requested.at_ns, until_ns, merged([*taken, *own]))
            near = [f for f in faults if f.overlaps(idle[0] - (bounds.ttl_s + 2) * NS, idle[1])]
            allowed_ns = bounds.allowed_ns(near)
            calm = _longest_free(wait.requested.at_ns, until_ns, merged([*taken, *own, *excused]))
            if _length(idle) > allowed_ns:
                violations.append(_idle(name, wait, idle, allowed_ns, claims.get(name, ())))
            elif _length(calm) > idle_ns:
                violations.append(_idle(name, wait, calm, idle_ns, claims.get(name, ())))
    return violations


def overtakes(events: Sequence[HistoryEvent], bounds: Bounds | None = None) -> list[Violation]:
    """Find grants to a later worker while an earlier one was in the waiting line and able to take the lease (X8).

    A holder may hand over to any waiter, wherever it stands in the line. A worker that was cut off is back only when it
    has a new connection: `bounds` state how long that may take.
    """
    faults = [_until_back(fault, bounds) for fault in excuses(events)]
    handed = [event for event in events if event.kind == "released" and (event.detail or "").startswith(HANDED_TO)]
    violations = []
    for name, waits in waits_by_name(events).items():
        granted = [wait for wait in waits if wait.ended is not None and wait.ended.kind == "granted"]
        requested_ns = [wait.requested.at_ns for wait in granted]
        for first in waits:
            if first.in_line is None:
                continue
            later = granted[bisect_right(requested_ns, first.in_line.at_ns) : bisect_left(requested_ns, first.end_ns)]
            for wait in later:
                assert wait.ended is not None
                successor = any(_handed(event, wait) for event in handed)
                if (
                    wait.ended.at_ns < first.end_ns
                    and not successor
                    and not _was_affected(first, wait.ended.at_ns, faults)
                ):
                    who, whom = wait.requested.worker, first.requested.worker
                    sentence = f"{who} asked for {name!r} after {whom} had queued, and had it first"
                    shown = (first.requested, first.in_line, wait.requested, wait.ended)
                    violations.append(Violation("overtakes", sentence, shown))
                    break
    return violations


def excuses(events: Sequence[HistoryEvent]) -> list[Window]:
    """Return the faults that may explain a delay."""
    return [fault for fault in fault_windows(events) if not fault.harmless]


def _until_back(fault: Window, bounds: Bounds | None) -> Window:
    if bounds is None or fault.kind not in _LISTENING_LOST:
        return fault
    return replace(fault, end_ns=fault.end_ns + bounds.recovery_s * NS)


def _handed(release: HistoryEvent, wait: Wait) -> bool:
    """Return whether a release handed the lease over to this waiter."""
    successor = f"{HANDED_TO}{wait.requested.worker}"
    return (
        release.name == wait.requested.name
        and release.detail == successor
        and wait.requested.at_ns < release.at_ns < wait.end_ns
    )


def _was_affected(wait: Wait, until_ns: int, faults: list[Window]) -> bool:
    """Return whether a fault affected this waiter before `until_ns`."""
    worker, since_ns = wait.requested.worker, wait.requested.at_ns
    return any(fault.affects(worker) and fault.overlaps(since_ns, until_ns) for fault in faults)


def _idle(name: str, wait: Wait, idle: Span, allowed_ns: int, claims: Sequence[HoldSpan]) -> Violation:
    sentence = (
        f"{name!r} was free for {(idle[1] - idle[0]) / NS:.1f} s while {wait.requested.worker} waited; "
        f"{allowed_ns / NS:.1f} s are allowed"
    )
    before = [claim for claim in claims if claim.start_ns <= idle[0]][-1:]
    shown = [event for claim in before for event in claim.events]
    return Violation("idle_with_waiters", sentence, (*shown, wait.requested, *([wait.ended] if wait.ended else [])))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of the spans, as spans that do not touch."""
    apart: list[Span] = []
    for start_ns, end_ns in sorted(spans):
        if apart and start_ns <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], end_ns))
        else:
            apart.append((start_ns, end_ns))
    return apart


def _longest_free(since_ns: float, until_ns: float, taken: list[Span]) -> Span:
    """Return the longest part of a span that no other span covers; empty if all of it is covered."""
    best = (since_ns, since_ns)
    for start_ns, end_ns in taken:
        if end_ns <= since_ns:
            continue
        if start_ns >= until_ns:
            break
        best = max(best, (since_ns, start_ns), key=_length)
        since_ns = end_ns
    return max(best, (since_ns, until_ns), key=_length)


def _length(span: Span) -> float:
    return span[1] - span[0]
