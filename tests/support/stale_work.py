"""Stale work: code that ran under a lease that another worker already held (X2). Kafka calls such a worker a stale.

Only code that ran counts, as `worked` events record it; a frozen process does nothing. The lease belongs to the
successor from the moment the successor learned of its grant, which is the latest possible moment. Stale work ends when
its worker learns of the loss.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.testing.checkers import Violation
from tests.support.fault_windows import HARMLESS, fault_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.testing.history import HistoryEvent
    from tests.support.fault_windows import Window

UNCHECKED = "unchecked"
# None of these faults alone ends a lease: the keeper renews it all the same.
_SPARING = frozenset({*HARMLESS, "loop stall", "cut", "lost reply"})


@dataclass(frozen=True, slots=True)
class StaleWork:
    """Stale work under one lease: its length, the grant, the grant of the successor, the last work, and the cause."""

    length_ns: int
    checked_ns: int
    granted: HistoryEvent
    successor: HistoryEvent
    last: HistoryEvent
    cause: str


def find_stale_work(events: Sequence[HistoryEvent]) -> list[StaleWork]:
    """Return the stale work of every lease: after its successor was granted, and before its holder knew."""
    grants: dict[str, list[HistoryEvent]] = defaultdict(list)
    worked: dict[tuple[str, int, str | None], list[HistoryEvent]] = defaultdict(list)
    known: dict[tuple[str, int, str | None], int] = {}
    for event in sorted(events, key=lambda event: event.at_ns):
        key = (event.worker, event.pid, event.token)
        if event.kind == "granted" and event.fence is not None:
            grants[event.name].append(event)
        elif event.kind == "worked":
            worked[key].append(event)
        elif event.kind in {"lost", "released"}:
            known.setdefault(key, event.at_ns)

    faults = fault_windows(events)
    found = []
    for named in grants.values():
        for grant, successor in _succeeded(named):
            key = (grant.worker, grant.pid, grant.token)
            late = [work for work in worked.get(key, ()) if work.at_ns > successor.at_ns]
            late = [work for work in late if work.earliest_ns < known.get(key, work.at_ns)]
            if not late:
                continue
            # Only a worker that checks its lease before it goes on can learn of the loss.
            checked = [work for work in late if work.detail != UNCHECKED and work.earliest_ns > successor.at_ns]
            length_ns = sum(work.at_ns - max(work.earliest_ns, successor.at_ns) for work in late)
            checked_ns = sum(work.at_ns - work.earliest_ns for work in checked)
            found.append(StaleWork(length_ns, checked_ns, grant, successor, late[-1], _cause(faults, grant, successor)))
    return found


def late_loss_reports(events: Sequence[HistoryEvent], allowed_s: float = 0.25) -> list[Violation]:
    """Find holders that called `lease.check()` before each step and still went on for longer than `allowed_s` (X2)."""
    return [
        Violation(
            "late_loss_reports",
            f"{stale.granted.worker} went on for {stale.checked_ns / 1e6:.0f} ms, checking all the time, "
            f"after {stale.successor.worker} had {stale.granted.name!r}",
            (stale.granted, stale.successor, stale.last),
        )
        for stale in find_stale_work(events)
        if stale.checked_ns > allowed_s * 1e9
    ]


def _cause(faults: list[Window], grant: HistoryEvent, successor: HistoryEvent) -> str:
    """Return the last fault of the holder before the successor's grant; a fault that can end a lease comes first."""
    near = [f for f in faults if f.affects(grant.worker) and f.overlaps(grant.at_ns, successor.at_ns)]
    if not near:
        return "unknown"
    return max(near, key=lambda fault: (fault.kind not in _SPARING, fault.start_ns)).kind


def _succeeded(grants: list[HistoryEvent]) -> list[tuple[HistoryEvent, HistoryEvent]]:
    """Return each grant with the first grant of another token under a higher fence."""
    by_fence = sorted(grants, key=lambda grant: grant.fence or 0)
    pairs = []
    earliest: HistoryEvent | None = None
    for grant in reversed(by_fence):
        if earliest is not None and earliest.token != grant.token:
            pairs.append((grant, earliest))
        if earliest is None or grant.at_ns < earliest.at_ns:
            earliest = grant
    return pairs
