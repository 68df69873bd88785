"""What is done for the table now and then, by the thread that writes: folding, and maintenance if it is asked for.

The rule: it goes through the same gate as every write, and its failure is nobody's: it is logged, it stays to be seen
in the status until it has gone well again, and it is tried again when it is next due.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.contrib.lancedb import writing
from holdfast.contrib.lancedb.gate import attempt
from holdfast.observer import log

if TYPE_CHECKING:
    from holdfast.contrib.lancedb.gate import Gate, Passage

FOLD_AFTER = 20


class Schedule(NamedTuple):
    """When maintenance comes, in seconds; what is older than the retention is removed by it."""

    every_s: float = 24 * 3600.0
    first_s: float = 300.0
    retention: timedelta = timedelta(days=7)


class Upkeep:
    """Of one table. `schedule` is `None` where nobody asked for maintenance."""

    def __init__(self, schedule: Schedule | None, *, fold_after: int = FOLD_AFTER) -> None:
        self._schedule = schedule
        self._fold_after = fold_after
        self._unfolded = 0
        self._next = None if schedule is None else time.monotonic() + schedule.first_s
        self.runs = 0
        self.trouble = ""

    def count(self, changes: int) -> None:
        """So many changes were made, of which the indices may not know."""
        self._unfolded += changes

    def is_due(self) -> bool:
        return self._fold_is_due() or self.due_in_s() == 0.0

    def due_in_s(self) -> float | None:
        """How long until maintenance is due; `None` if it never is."""
        return None if self._next is None else max(0.0, self._next - time.monotonic())

    def run(self, gate: Gate) -> None:
        """Whatever is due."""
        if self._fold_is_due():
            self._unfolded = 0
            self._do(gate, "folding", _folded)
        if self._next is not None and self._schedule is not None and self._next <= time.monotonic():
            retention = self._schedule.retention
            if self._do(gate, "maintenance", lambda passage: writing.optimize(passage, retention)):
                self.runs += 1
            # From its end: a run that took longer than the interval is not followed by another at once.
            self._next = time.monotonic() + self._schedule.every_s

    def _fold_is_due(self) -> bool:
        return bool(self._fold_after) and self._unfolded >= self._fold_after

    def _do(self, gate: Gate, what: str, work: Callable[[Passage], Any]) -> bool:
        try:
            with gate.entered() as passage:
                attempt(passage, work)
        except BaseException as error:  # a panic of Lance is one, and must not end the thread
            self.trouble = f"{what} failed: {error}"
            log.warning("holdfast: %s of %s failed, and will be tried again: %s", what, gate.uri, error)
            return False
        if self.trouble.startswith(what):
            self.trouble = ""
        return True


def _folded(passage: Passage) -> None:
    if writing.is_indexed(passage):
        writing.fold(passage)
