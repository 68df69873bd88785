"""How long did code run under a lease that was already another's? (X2)

The rule: only code that ran counts, as `worked` events tell it; a frozen process does nothing. The lease was another's
from the moment its successor had it, which is the latest that it can have been given away. The zombie ends when its
holder knows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.testing.checkers import Violation
from tests.support.fault_windows import HARMLESS, fault_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.testing.history import Event
    from tests.support.fault_windows import Window

UNCHECKED = "unchecked"
# None of these alone ends a lease: the keeper renews it all the same.
_SPARING = frozenset({*HARMLESS, "loop stall", "cut", "lost reply"})


@dataclass(frozen=True, slots=True)
class StaleWork:
    """Code that ran too late: for how long, under which lease, after whose grant, and what had struck its worker."""

    length_ns: int
    checked_ns: int
    granted: Event
    successor: Event
    last: Event
    cause: str


def find_stale_work(events: Sequence[Event]) -> list[StaleWork]:
    """Every lease under which code ran after its successor had been granted, and before its holder knew."""
    grants: dict[str, list[Event]] = defaultdict(list)
    worked: dict[tuple[str, int, str | None], list[Event]] = defaultdict(list)
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
            # Whoever asked before it went on is to be told; whoever did not ask cannot be.
            asked = [work for work in late if work.detail != UNCHECKED and work.earliest_ns > successor.at_ns]
            length_ns = sum(work.at_ns - max(work.earliest_ns, successor.at_ns) for work in late)
            checked_ns = sum(work.at_ns - work.earliest_ns for work in asked)
            found.append(StaleWork(length_ns, checked_ns, grant, successor, late[-1], _cause(faults, grant, successor)))
    return found


def late_loss_reports(events: Sequence[Event], allowed_s: float = 0.25) -> list[Violation]:
    """A holder that asks `lease.check()` before each step makes no more than a step or two too many (X2)."""
    return [
        Violation(
            "late_loss_reports",
            f"{zombie.granted.worker} went on for {zombie.checked_ns / 1e6:.0f} ms, asking all the time, "
            f"after {zombie.successor.worker} had {zombie.granted.name!r}",
            (zombie.granted, zombie.successor, zombie.last),
        )
        for zombie in find_stale_work(events)
        if zombie.checked_ns > allowed_s * 1e9
    ]


def _cause(faults: list[Window], grant: Event, successor: Event) -> str:
    """What struck the holder last before its lease was another's; of two, that which can cost a lease."""
    near = [f for f in faults if f.strikes(grant.worker) and f.touches(grant.at_ns, successor.at_ns)]
    if not near:
        return "unknown"
    return max(near, key=lambda fault: (fault.kind not in _SPARING, fault.start_ns)).kind


def _succeeded(grants: list[Event]) -> list[tuple[Event, Event]]:
    """Each grant with the first one under a higher fence that somebody else learned of."""
    by_fence = sorted(grants, key=lambda grant: grant.fence or 0)
    pairs = []
    earliest: Event | None = None
    for grant in reversed(by_fence):
        if earliest is not None and earliest.token != grant.token:
            pairs.append((grant, earliest))
        if earliest is None or grant.at_ns < earliest.at_ns:
            earliest = grant
    return pairs
