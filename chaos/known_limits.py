"""The known limits of the engines: what they do not promise, each by name, and how to recognise it.

A limit explains a violation only if the history has a fault that is its cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.fault_windows import STOPPED_IN_GATE, fault_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chaos.rounds import Round
    from holdfast.testing.checkers import Violation
    from holdfast.testing.history import HistoryEvent
    from tests.support.fault_windows import Window

    Explains = Callable[[Round, Violation, Sequence[HistoryEvent], list[Window]], bool]

NS = 1_000_000_000
# A holder that was frozen, whose threads could not run, or that did not learn of its loss in time may write too late.
_LATE = frozenset(
    {
        "freeze",
        "gil stall",
        "loop stall",
        "half-open",
        "slow re-send",
        "late answer",
        "machine stall",
        "frozen server",
        "slow server",
        STOPPED_IN_GATE,
    }
)
_ON_ITS_WAY_NS = NS // 2
FAILOVERS = ("primary killed", "primary frozen", "failover")
FORGETTING = frozenset({"restart without data", "server clock", *FAILOVERS})


@dataclass(frozen=True, slots=True)
class KnownLimit:
    """A limit: its name, its description, the invariants that it may break, and a test for a violation."""

    name: str
    says: str
    promises: tuple[str, ...]
    explains: Explains


def _late_unguarded_write(
    round_: Round, violation: Violation, events: Sequence[HistoryEvent], faults: list[Window]
) -> bool:
    """Return whether the resource compares no fence, and a holder under a fault wrote after its successor's grant.

    Between its grant and its late write such a holder may damage the writes of others; a violation at another time has
    another cause. Only a wrong sum at the end has no events of its own: there any late write explains it.
    """
    if round_.work.guarded:
        return False
    times = [event.at_ns for event in violation.events]
    late = [fault for fault in faults if fault.kind in _LATE | FORGETTING]
    for grant, write in _late_writes(events):
        concerned = not times or (grant.at_ns <= max(times) and min(times) <= write.at_ns)
        if concerned and any(
            fault.affects(grant.worker) and fault.overlaps(grant.at_ns, write.at_ns) for fault in late
        ):
            return True
    return False


def _late_writes(events: Sequence[HistoryEvent]) -> Iterator[tuple[HistoryEvent, HistoryEvent]]:
    """Yield every accepted write after the grant of a newer fence, with the grant of the write."""
    grants: dict[tuple[str, str | None], HistoryEvent] = {}
    newest = 0
    for event in sorted(events, key=lambda event: event.at_ns):
        if event.kind == "granted":
            grants.setdefault((event.worker, event.token), event)
            newest = max(newest, event.fence or 0)
        elif event.kind == "write" and event.accepted and (event.fence or 0) < newest:
            grant = grants.get((event.worker, event.token))
            if grant is not None:
                yield grant, event


def _forgotten(kind: str) -> Explains:
    """Return a test for violations after a fault of this kind: the server lost or expired a lease that was trusted."""

    def explains(round_: Round, violation: Violation, events: Sequence[HistoryEvent], faults: list[Window]) -> bool:
        if not violation.events:
            return False
        # From the older grant on, which the server made a moment before the worker recorded it.
        since_ns = min(event.at_ns for event in violation.events) - _ON_ITS_WAY_NS
        until_ns = max(event.at_ns for event in violation.events)
        return any(fault.kind == kind and fault.overlaps(since_ns, until_ns) for fault in faults)

    return explains


def _child_of_memory(
    round_: Round,
    violation: Violation,
    events: Sequence[HistoryEvent],
    faults: list[Window],
) -> bool:
    return round_.engine == "memory" and any(event.worker.endswith(".child") for event in violation.events)


KNOWN_LIMITS = (
    KnownLimit(
        "late unguarded write",
        "a resource that compares no fences accepts the late write of a holder that was frozen or cut off",
        ("X4", "X5"),
        _late_unguarded_write,
    ),
    KnownLimit(
        "restart without data",
        "a server without its data has lost leases and waiting lines: a second holder is granted, under a higher fence",
        ("X1", "X2", "X8"),
        _forgotten("restart without data"),
    ),
    KnownLimit(
        "server clock set forward",
        "a server whose clock jumps forward expires leases early: a second holder is granted, under a higher fence",
        ("X1", "X2", "X8"),
        _forgotten("server clock"),
    ),
    *(
        KnownLimit(
            f"failover ({kind})",
            "a promoted replica may not know the last grants: a second holder is granted, under a higher fence",
            ("X1", "X2", "X8"),
            _forgotten(kind),
        )
        for kind in FAILOVERS
    ),
    KnownLimit(
        "memory ends at fork",
        "a forked child has its own memory, and so its own leases",
        ("X1", "X2", "X3"),
        _child_of_memory,
    ),
)


def explains(round_: Round, promise: str, violation: Violation, events: Sequence[HistoryEvent]) -> str | None:
    """Return the name of the limit that explains this violation, or None."""
    faults = fault_windows(events)
    for expectation in KNOWN_LIMITS:
        if promise in expectation.promises and expectation.explains(round_, violation, events, faults):
            return expectation.name
    return None
