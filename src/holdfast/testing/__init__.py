"""Tools for tests of programs that hold leases: processes that freeze and die, their history, and checkers of it.

The tools need the standard library only. Two modules import pytest: `holdfast.testing.plugin`, which pytest loads by
itself, and `holdfast.testing.conformance`. This package loads the names below when a program first uses them, so that
the plugin costs nothing in test runs that use no fixture of it.

The wheel `holdfast` has the plugin, the servers and `eventually`; `holdfast-conformance` has the other tools.
"""

from __future__ import annotations

from holdfast._lazy import lazy_exports

TYPE_CHECKING = False  # instead of typing's constant, to save the import
if TYPE_CHECKING:
    from holdfast.testing.checkers import (
        Violation,
        assert_holds,
        check,
        fences_grow,
        guarded_writes_never_go_down,
        leaks,
        lost_appends,
        lost_updates,
        observers_see_fences_grow,
        overlapping_holders,
    )
    from holdfast.testing.child_process import read_line, ready, send_line
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.guard import GuardedFile, Stored
    from holdfast.testing.history import History, HistoryEvent, Kind, Recorder, read_history
    from holdfast.testing.pause_points import PausePoints
    from holdfast.testing.processes import WorkerProcess, WorkerProcesses
    from holdfast.testing.waiting import eventually

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "holdfast.testing.checkers": (
            "Violation",
            "assert_holds",
            "check",
            "overlapping_holders",
            "fences_grow",
            "guarded_writes_never_go_down",
            "leaks",
            "lost_appends",
            "lost_updates",
            "observers_see_fences_grow",
        ),
        "holdfast.testing.child_process": ("read_line", "ready", "send_line"),
        "holdfast.testing.clock": ("ManualClock",),
        "holdfast.testing.guard": ("GuardedFile", "Stored"),
        "holdfast.testing.history": ("HistoryEvent", "History", "Kind", "Recorder", "read_history"),
        "holdfast.testing.pause_points": ("PausePoints",),
        "holdfast.testing.processes": ("WorkerProcess", "WorkerProcesses"),
        "holdfast.testing.waiting": ("eventually",),
    },
    wheel="holdfast-conformance",
)

__all__ = [
    "GuardedFile",
    "History",
    "HistoryEvent",
    "Kind",
    "ManualClock",
    "PausePoints",
    "Recorder",
    "Stored",
    "Violation",
    "WorkerProcess",
    "WorkerProcesses",
    "assert_holds",
    "check",
    "eventually",
    "fences_grow",
    "guarded_writes_never_go_down",
    "leaks",
    "lost_appends",
    "lost_updates",
    "observers_see_fences_grow",
    "overlapping_holders",
    "read_history",
    "read_line",
    "ready",
    "send_line",
]
