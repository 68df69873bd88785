"""Periodic work of the writing thread on the table: index updates, and maintenance if it is scheduled.

The rule: periodic work uses the same writer lock as every write. A failure reaches no caller: the thread logs it, the
status shows it until the next success, and the thread tries again when the work is next due.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.contrib.lancedb import writing
from holdfast.contrib.lancedb.writer_lock import attempt
from holdfast.observer import log

if TYPE_CHECKING:
    from holdfast.contrib.lancedb.writer_lock import WriteAccess, WriterLock

FOLD_AFTER = 20


class Schedule(NamedTuple):
    """When maintenance runs, in seconds; it removes versions that are older than the retention."""

    every_s: float = 24 * 3600.0
    first_s: float = 300.0
    retention: timedelta = timedelta(days=7)


class Maintenance:
    """The periodic work of one table. `schedule`: `None` without scheduled maintenance."""

    def __init__(self, schedule: Schedule | None, *, fold_after: int = FOLD_AFTER) -> None:
        self._schedule = schedule
        self._fold_after = fold_after
        self._unfolded = 0
        self._next = None if schedule is None else time.monotonic() + schedule.first_s
        self.runs = 0
        self.trouble = ""

    def count(self, changes: int) -> None:
        """Count commits that the indices may not cover yet."""
        self._unfolded += changes

    def is_due(self) -> bool:
        return self._fold_is_due() or self.due_in_s() == 0.0

    def due_in_s(self) -> float | None:
        """Return the seconds until maintenance is due; `None` if it is not scheduled."""
        return None if self._next is None else max(0.0, self._next - time.monotonic())

    def run(self, writer_lock: WriterLock) -> None:
        """Do the work that is due."""
        if self._fold_is_due():
            self._unfolded = 0
            self._do(writer_lock, "folding", _folded)
        if self._next is not None and self._schedule is not None and self._next <= time.monotonic():
            retention = self._schedule.retention
            if self._do(writer_lock, "maintenance", lambda access: writing.optimize(access, retention)):
                self.runs += 1
            # Count from the end of the run, so that a run longer than the interval is not followed by another at once.
            self._next = time.monotonic() + self._schedule.every_s

    def _fold_is_due(self) -> bool:
        return bool(self._fold_after) and self._unfolded >= self._fold_after

    def _do(self, writer_lock: WriterLock, what: str, work: Callable[[WriteAccess], Any]) -> bool:
        try:
            with writer_lock.entered() as access:
                attempt(access, work)
        except BaseException as error:  # also a panic of Lance: it must not end the thread
            self.trouble = f"{what} failed: {error}"
            log.warning("holdfast: %s of %s failed, and will be tried again: %s", what, writer_lock.uri, error)
            return False
        if self.trouble.startswith(what):
            self.trouble = ""
        return True


def _folded(access: WriteAccess) -> None:
    if writing.is_indexed(access):
        writing.fold(access)
