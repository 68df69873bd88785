"""Turn the fault events of a history into spans of time.

A checker excuses only what a recorded fault explains, and only for as long as the history states. A process that the
machine was too busy to run is recorded, too, as a fault of kind `MACHINE`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.testing.history import HistoryEvent

MACHINE = "machine stall"
# A process that is stopped inside the gate of SQLite blocks all others: the engine's docs name that caveat.
STOPPED_IN_GATE = "stopped in the gate"
ALL_WORKERS = ""
# A correct client does not even notice these: the history records them, and they excuse nothing.
HARMLESS = frozenset({"fork", "cancellation storm", "client clock"})


@dataclass(frozen=True, slots=True)
class Window:
    """One fault: its kind, its target (`ALL_WORKERS` or a worker), its start and its end."""

    kind: str
    target: str
    start_ns: int
    end_ns: float

    def overlaps(self, since_ns: float, until_ns: float) -> bool:
        return self.start_ns <= until_ns and since_ns <= self.end_ns

    @property
    def harmless(self) -> bool:
        return self.kind in HARMLESS

    def affects(self, worker: str) -> bool:
        return self.target in (ALL_WORKERS, worker)


def fault_windows(events: Sequence[HistoryEvent]) -> list[Window]:
    """Return the faults of a history in the order of their starts; a fault that was never healed lasts for ever.

    A `fault` with a `since_ns` was recorded afterwards: it ended at the moment of recording, or ends at its `until_ns`.
    A `died` is a fault of kind `kill` without a length.
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
