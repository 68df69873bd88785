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
    leftovers,
    lost_appends,
    lost_updates,
    observers_see_fences_grow,
)
from holdfast.testing.child import read_line, ready, tell
from holdfast.testing.deaths import in_child, killed_at_every_line
from holdfast.testing.guard import GuardedFile, Stored
from holdfast.testing.history import Event, History, Kind, Recorder
from holdfast.testing.history import read as read_history
from holdfast.testing.points import PausePoints
from holdfast.testing.processes import Worker, Workers
from holdfast.testing.queues import Bounds, idle_while_awaited, overtakes
from holdfast.testing.waiting import eventually
from holdfast.testing.wakeups import slow_wake_ups, wake_ups_ns
from holdfast.testing.windows import Window, fault_windows
from holdfast.testing.zombies import Zombie, late_losses, zombie_times

__all__ = [
    "Bounds",
    "Event",
    "GuardedFile",
    "History",
    "Kind",
    "PausePoints",
    "Recorder",
    "Stored",
    "Violation",
    "Window",
    "Worker",
    "Workers",
    "Zombie",
    "assert_holds",
    "check",
    "claimed_overlaps",
    "eventually",
    "fault_windows",
    "fences_grow",
    "guarded_writes_never_go_down",
    "idle_while_awaited",
    "in_child",
    "killed_at_every_line",
    "late_losses",
    "leftovers",
    "lost_appends",
    "lost_updates",
    "observers_see_fences_grow",
    "overtakes",
    "read_history",
    "read_line",
    "ready",
    "slow_wake_ups",
    "tell",
    "wake_ups_ns",
    "zombie_times",
]
