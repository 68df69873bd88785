"""Lock files whose locks a forked child does not keep.

A lock of `flock` belongs to the open file, which a child shares. If the parent were killed while it holds the lock, all
other processes would wait for a child that does not use it. So the child replaces each such descriptor by /dev/null:
then the child has no lock, and a later use of the descriptor in the child does not touch the parent's file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.shared_files import Folder

_open: set[int] = set()


def opened(folder: Folder, name: str) -> int:
    """Open the file, create it if necessary, and return the descriptor."""
    descriptor = folder.open_or_create(name)
    _open.add(descriptor)
    return descriptor


def close(descriptor: int) -> None:
    """Close the descriptor and free its lock."""
    _open.discard(descriptor)  # before the close: another file may get the number as soon as it is closed
    os.close(descriptor)


def _forget_in_child() -> None:
    """Replace the inherited descriptors by /dev/null."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in _open:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _open.clear()


os.register_at_fork(after_in_child=_forget_in_child)
