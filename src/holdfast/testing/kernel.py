"""The states of the threads of a process group, as Linux shows them in `/proc`.

This module only reads. A process that ends in the meantime counts as absent.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

STOPPED = frozenset("Tt")
DEAD = frozenset("ZX")


def states(group: int) -> list[str]:
    """Return the one-character state of every thread of every process in the group.

    It reads threads, because a stop signal halts them one by one, and the state of a process is that of its first
    thread.
    """
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and _stat(process)[2] == str(group):
                found += [_stat(thread)[0] for thread in (process / "task").iterdir()]
    return found


def _stat(directory: Path) -> list[str]:
    """Return the fields after the command: state, parent, group, ... The command may contain parentheses itself."""
    return (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()
