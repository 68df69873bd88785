"""What the kernel says about a group of processes (Linux: it reads `/proc`).

The rule: only look, never signal. A process that vanishes while we look was not there.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

STOPPED = frozenset("Tt")
DEAD = frozenset("ZX")


def states(group: int) -> list[str]:
    """The one-letter state of every thread of every process in the group.

    Threads, because a stop signal halts them one by one, and the state of a process is only that of
    its first thread.
    """
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and _stat(process)[2] == str(group):
                found += [_stat(thread)[0] for thread in (process / "task").iterdir()]
    return found


def _stat(directory: Path) -> list[str]:
    """State, parent, group, ...: what follows the command, which may itself contain parentheses."""
    return (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()
