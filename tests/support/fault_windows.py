"""When was what broken? Fault events to spans of time.

The rule: a checker excuses only what the history says was broken, for as long as it says so. A machine that was too
busy to run a worker writes that down too, as a fault of kind `MACHINE`: nothing is excused in silence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.testing.history import Event

MACHINE = "machine stall"
# A process that stands still inside the gate of SQLite keeps everybody out: the engine's docs name that limit.
IN_THE_GATE = "still in the gate"
EVERYBODY = ""
# A right client does not even notice these: they stand in the history, and excuse nothing.
HARMLESS = frozenset({"fork", "cancellation storm", "client clock"})


@dataclass(frozen=True, slots=True)
class Window:
    """One fault: what, whom it struck (`EVERYBODY` or a worker), from when until when."""

    kind: str
    target: str
    start_ns: int
    end_ns: float

    def touches(self, since_ns: float, until_ns: float) -> bool:
        return self.start_ns <= until_ns and since_ns <= self.end_ns

    @property
    def harmless(self) -> bool:
        return self.kind in HARMLESS

    def strikes(self, worker: str) -> bool:
        return self.target in (EVERYBODY, worker)


def fault_windows(events: Sequence[Event]) -> list[Window]:
    """The faults of a history, in the order in which they struck; one that was never healed lasts for ever.

    A `fault` with a `since_ns` of its own is told afterwards: it is over now, or at its `until_ns`. A `died` is a fault
    of kind `kill` without a length.
    """
    healed = {(event.pid, event.value): event.at_ns for event in events if event.kind == "healed"}
    found = []
    for event in sorted(events, key=lambda event: event.earliest_ns):
        if event.kind == "died":
            found.append(Window("kill", event.worker, event.at_ns, event.at_ns))
        elif event.kind == "fault":
            over = math.inf if event.since_ns is None else event.until_ns or event.at_ns
            end_ns = healed.get((event.pid, event.value), over)
            found.append(Window(event.detail or "", event.name, event.earliest_ns, end_ns))
    return found
