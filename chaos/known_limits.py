"""What no engine, or one engine, does not promise: each limit by name, and how to recognise it.

The rule: an expectation explains a violation only with a fault of the history that is its cause. One that explains
everything explains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.fault_windows import STOPPED_IN_GATE, fault_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chaos.rounds import Round
    from holdfast.testing.checkers import Violation
    from holdfast.testing.history import Event
    from tests.support.fault_windows import Window

    Explains = Callable[[Round, Violation, Sequence[Event], list[Window]], bool]

NS = 1_000_000_000
# A frozen holder, one whose threads cannot run, one whose lease ended behind its back: all may write too late.
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
    """A limit: its name, what it says, which promises it may break, and whether it explains this violation."""

    name: str
    says: str
    promises: tuple[str, ...]
    explains: Explains


def _late_unguarded_write(round_: Round, violation: Violation, events: Sequence[Event], faults: list[Window]) -> bool:
    """The resource compares nothing, and a holder that was struck wrote after its successor had the lease.

    From its grant on to its late write such a holder spoils what others do; a violation outside of that has another
    cause. Only a wrong sum at the end has no events of its own: there any late write will do.
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


def _late_writes(events: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
    """Every accepted write that came after the grant of a newer fence, with its own grant."""
    grants: dict[tuple[str, str | None], Event] = {}
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
    """The server forgot the older lease, or thought that its time was over, while its holder still trusted it."""

    def explains(round_: Round, violation: Violation, events: Sequence[Event], faults: list[Window]) -> bool:
        if not violation.events:
            return False
        # From the older grant on; it may have been on its way for a moment when it was recorded.
        since_ns = min(event.at_ns for event in violation.events) - _ON_ITS_WAY_NS
        until_ns = max(event.at_ns for event in violation.events)
        return any(fault.kind == kind and fault.overlaps(since_ns, until_ns) for fault in faults)

    return explains


def _child_of_memory(
    round_: Round,
    violation: Violation,
    events: Sequence[Event],
    faults: list[Window],
) -> bool:
    return round_.engine == "memory" and any(event.worker.endswith(".child") for event in violation.events)


KNOWN_LIMITS = (
    KnownLimit(
        "late unguarded write",
        "a resource that compares no fences takes the late write of a holder that was frozen or cut off",
        ("X4", "X5"),
        _late_unguarded_write,
    ),
    KnownLimit(
        "restart without data",
        "a server that lost its data has forgotten leases and queues: a second holder gets in, under a larger fence",
        ("X1", "X2", "X8"),
        _forgotten("restart without data"),
    ),
    KnownLimit(
        "server clock set forward",
        "a server whose calendar is set forward ends leases early: a second holder gets in, under a larger fence",
        ("X1", "X2", "X8"),
        _forgotten("server clock"),
    ),
    *(
        KnownLimit(
            f"failover ({kind})",
            "a replica that takes over may not know the last grants: a second holder gets in, under a larger fence",
            ("X1", "X2", "X8"),
            _forgotten(kind),
        )
        for kind in FAILOVERS
    ),
    KnownLimit(
        "memory ends at fork",
        "a forked child has a memory of its own, and so has its leases",
        ("X1", "X2", "X3"),
        _child_of_memory,
    ),
)


def explains(round_: Round, promise: str, violation: Violation, events: Sequence[Event]) -> str | None:
    """The name of the limit that explains this violation, if one does."""
    faults = fault_windows(events)
    for expectation in KNOWN_LIMITS:
        if promise in expectation.promises and expectation.explains(round_, violation, events, faults):
            return expectation.name
    return None
