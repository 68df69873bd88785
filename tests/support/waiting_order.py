"""Does waiting work? Checkers of liveness and of order (X7, X8).

The rule: as in `checkers`, nobody is accused for what a fault explains. What a fault may cost is written here as a
number: one that can leave a lease behind with nobody to use it costs one ttl, and no more; whoever comes back uses or
returns what it has got, and that takes a moment. When it has been over for so long it explains nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.testing.checkers import Violation
from holdfast.testing.hold_spans import hold_spans_by_name
from tests.support.fault_windows import EVERYBODY, IN_THE_GATE, MACHINE, fault_windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.testing.history import Event
    from holdfast.testing.hold_spans import HoldSpan
    from tests.support.fault_windows import Window

Span = tuple[float, float]

NS = 1_000_000_000
# Whoever is struck by one of these may have got the lease and be unable to use it, or to say that it does not.
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
        IN_THE_GATE,
        "slow server",
        "frozen server",
        "restart",
        "server clock",
        "primary killed",
        "primary frozen",
        "failover",
    }
)
# Of these nobody comes back: what was left behind stands for its ttl.
LASTING = frozenset({"kill", "server clock"})
# After these a worker may not hear its turn until it has noticed, and listens anew.
_DEAFENING = frozenset({"half-open", "slow re-send", "late answer", "frozen server", "restart", "primary frozen"})
_ENDS = frozenset({"granted", "refused", "died"})
# A release whose detail is this and a worker was made in favour of that worker.
HANDED_TO = "to "


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a name may stay free while somebody waits for it.

    `idle_s` with nothing broken: an offer that its waiter cannot take lasts for a second. Each worker that an orphaning
    fault struck nearby adds `ttl_s`, a dead one only where the engine cannot see it; then its place in the queue adds
    `mark_s`, too. One that is only cut off or held up comes back: it has a new connection and an answer within
    `recovery_s`.
    """

    ttl_s: float
    idle_s: float = 1.5
    mark_s: float = 7.0
    recovery_s: float = 4.0
    deaths_are_seen: bool = False

    def allowed_ns(self, faults: Iterable[Window]) -> int:
        """For all of a stretch in which these faults had their effects."""
        injected = [fault for fault in faults if self._costs(fault)]
        dead = any(fault.kind == "kill" for fault in injected)
        each: dict[str, float] = {}
        for fault in injected:
            each[fault.target] = max(each.get(fault.target, 0.0), self._lease_s(fault))
        return int((self.idle_s + sum(each.values()) + (self.mark_s if dead else 0)) * NS)

    def excused(self, faults: Iterable[Window]) -> list[Span]:
        """When these faults may have their effects: however many there are, a moment is excused once."""
        return [
            (fault.start_ns, fault.end_ns + (self._lease_s(fault) + (self.mark_s if fault.kind == "kill" else 0)) * NS)
            for fault in faults
            if self._costs(fault)
        ]

    def _lease_s(self, fault: Window) -> float:
        """How long a lease may stand that nobody uses because of this fault, once it is over."""
        return self.ttl_s if fault.kind in LASTING else min(self.ttl_s, self.recovery_s)

    def _costs(self, fault: Window) -> bool:
        return fault.kind in ORPHANING and not (fault.kind == "kill" and self.deaths_are_seen)


@dataclass(slots=True)
class Wait:
    """One worker that waits for one name: from `requested` to its answer or its death."""

    asked: Event
    queued: Event | None = None
    ended: Event | None = None

    @property
    def end_ns(self) -> float:
        return math.inf if self.ended is None else self.ended.at_ns


def waits_by_name(events: Sequence[Event]) -> dict[str, list[Wait]]:
    """Who waited for each name, in the order of asking. A worker waits for one thing at a time."""
    waits: dict[str, list[Wait]] = defaultdict(list)
    open_: dict[tuple[str, int], Wait] = {}
    for event in sorted(events, key=lambda event: event.at_ns):
        who = (event.worker, event.pid)
        if event.kind == "requested":
            open_[who] = Wait(event)
            waits[event.name].append(open_[who])
        elif who in open_ and event.kind == "waiting":
            open_[who].queued = event
        elif who in open_ and event.kind in _ENDS:
            open_.pop(who).ended = event
    return waits


def idle_with_waiters(events: Sequence[Event], bounds: Bounds, now_ns: int | None = None) -> list[Violation]:
    """A name that somebody waits for is not left free for longer than the bounds allow (X7).

    Time in which everybody was struck does not count, nor a waiter while it is struck itself. With `now_ns` the
    history is judged while it grows.
    """
    faults = excuses(events)
    excused = bounds.excused(faults)
    idle_ns = int(bounds.idle_s * NS)
    end_ns = now_ns or max((event.at_ns for event in events), default=0)
    claims = hold_spans_by_name(events)
    down = [(fault.start_ns, fault.end_ns) for fault in faults if fault.target == EVERYBODY]
    violations = []
    for name, waits in waits_by_name(events).items():
        taken = merged([*((claim.start_ns, claim.end_ns) for claim in claims.get(name, ())), *down])
        for wait in waits:
            until_ns = min(wait.end_ns, end_ns)
            if until_ns - wait.asked.at_ns <= idle_ns:
                continue
            own = [(fault.start_ns, fault.end_ns) for fault in faults if fault.target == wait.asked.worker]
            idle = _longest_free(wait.asked.at_ns, until_ns, merged([*taken, *own]))
            near = [f for f in faults if f.touches(idle[0] - (bounds.ttl_s + 2) * NS, idle[1])]
            allowed_ns = bounds.allowed_ns(near)
            calm = _longest_free(wait.asked.at_ns, until_ns, merged([*taken, *own, *excused]))
            if _length(idle) > allowed_ns:
                violations.append(_idle(name, wait, idle, allowed_ns, claims.get(name, ())))
            elif _length(calm) > idle_ns:
                violations.append(_idle(name, wait, calm, idle_ns, claims.get(name, ())))
    return violations


def overtakes(events: Sequence[Event], bounds: Bounds | None = None) -> list[Violation]:
    """Nobody who asked later is granted before one who was in the queue already and could have taken it (X8).

    Whoever holds may hand over to one that waits, wherever it stands in the queue. Whoever was cut off is not there
    again before it has a new connection: `bounds` say how long that may take.
    """
    faults = [_until_back(fault, bounds) for fault in excuses(events)]
    handed = [event for event in events if event.kind == "released" and (event.detail or "").startswith(HANDED_TO)]
    violations = []
    for name, waits in waits_by_name(events).items():
        granted = [wait for wait in waits if wait.ended is not None and wait.ended.kind == "granted"]
        asked_ns = [wait.asked.at_ns for wait in granted]
        for first in waits:
            if first.queued is None:
                continue
            later = granted[bisect_right(asked_ns, first.queued.at_ns) : bisect_left(asked_ns, first.end_ns)]
            for wait in later:
                assert wait.ended is not None
                heir = any(_handed(event, wait) for event in handed)
                if wait.ended.at_ns < first.end_ns and not heir and not _struck(first, wait.ended.at_ns, faults):
                    who, whom = wait.asked.worker, first.asked.worker
                    sentence = f"{who} asked for {name!r} after {whom} had queued, and had it first"
                    shown = (first.asked, first.queued, wait.asked, wait.ended)
                    violations.append(Violation("overtakes", sentence, shown))
                    break
    return violations


def excuses(events: Sequence[Event]) -> list[Window]:
    """The faults that may explain a delay."""
    return [fault for fault in fault_windows(events) if not fault.harmless]


def _until_back(fault: Window, bounds: Bounds | None) -> Window:
    if bounds is None or fault.kind not in _DEAFENING:
        return fault
    return replace(fault, end_ns=fault.end_ns + bounds.recovery_s * NS)


def _handed(release: Event, wait: Wait) -> bool:
    """This release was in favour of this waiter."""
    heir = f"{HANDED_TO}{wait.asked.worker}"
    return release.name == wait.asked.name and release.detail == heir and wait.asked.at_ns < release.at_ns < wait.end_ns


def _struck(wait: Wait, until_ns: int, faults: list[Window]) -> bool:
    """Something stood in this waiter's way."""
    worker, since_ns = wait.asked.worker, wait.asked.at_ns
    return any(fault.strikes(worker) and fault.touches(since_ns, until_ns) for fault in faults)


def _idle(name: str, wait: Wait, idle: Span, allowed_ns: int, claims: Sequence[HoldSpan]) -> Violation:
    sentence = (
        f"{name!r} was nobody's for {(idle[1] - idle[0]) / NS:.1f} s while {wait.asked.worker} waited; "
        f"{allowed_ns / NS:.1f} s are allowed"
    )
    before = [claim for claim in claims if claim.start_ns <= idle[0]][-1:]
    shown = [event for claim in before for event in claim.events]
    return Violation("idle_with_waiters", sentence, (*shown, wait.asked, *([wait.ended] if wait.ended else [])))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same time, in spans that do not touch."""
    apart: list[Span] = []
    for start_ns, end_ns in sorted(spans):
        if apart and start_ns <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], end_ns))
        else:
            apart.append((start_ns, end_ns))
    return apart


def _longest_free(since_ns: float, until_ns: float, taken: list[Span]) -> Span:
    """The longest part of a span that nothing takes; empty if all of it is taken."""
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
