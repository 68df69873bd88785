"""Files that are opened to be locked, and that a forked child does not keep locked.

A lock of `flock` belongs to the open file, which a child shares. If the parent were killed inside, everybody would wait
for a child that knows nothing of it. So the child puts /dev/null in the place of each such file: it keeps no lock, and
whatever it still does with the number does no harm to that of its parent.
"""

from __future__ import annotations

import os
from pathlib import Path

_open: set[int] = set()


def opened(path: Path, mode: int) -> int:
    """A descriptor of the file, which is made if it is not there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    _open.add(descriptor)
    return descriptor


def close(descriptor: int) -> None:
    """Close it, and the lock with it."""
    _open.discard(descriptor)  # first: the number may be another file's as soon as it is closed
    os.close(descriptor)


def _let_go() -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in _open:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _open.clear()


os.register_at_fork(after_in_child=_let_go)
