"""Fault tools: real processes that freeze and die, their history, and checkers that judge it.

The rule: the standard library is all they need. Only `holdfast.testing.plugin`, which pytest loads by itself,
imports pytest.
"""

from holdfast.testing.checkers import (
    Violation,
    assert_holds,
    check,
    claimed_overlaps,
    fences_grow,
    guarded_writes_never_go_down,
    lost_updates,
)
from holdfast.testing.child import read_line, ready, tell
from holdfast.testing.guard import GuardedFile, Stored
from holdfast.testing.history import Event, History, Kind, Recorder
from holdfast.testing.history import read as read_history
from holdfast.testing.points import PausePoints
from holdfast.testing.processes import Worker, Workers
from holdfast.testing.waiting import eventually

__all__ = [
    "Event",
    "GuardedFile",
    "History",
    "Kind",
    "PausePoints",
    "Recorder",
    "Stored",
    "Violation",
    "Worker",
    "Workers",
    "assert_holds",
    "check",
    "claimed_overlaps",
    "eventually",
    "fences_grow",
    "guarded_writes_never_go_down",
    "lost_updates",
    "read_history",
    "read_line",
    "ready",
    "tell",
]
