"""filelock: a kernel lock on a file, polled twenty times a second. No fence, no ttl."""

from __future__ import annotations

import os
from contextlib import contextmanager

from filelock import FileLock, SoftFileLock


@contextmanager
def blocking(folder: str, ttl: float):  # noqa: ARG001 - the kernel ends it with the process
    def acquire(name: str):
        lock = FileLock(os.path.join(folder, f"filelock-{name}"))
        lock.acquire()
        return lock.release

    yield acquire


@contextmanager
def soft(folder: str, ttl: float):  # noqa: ARG001 - it has none
    """For filesystems without locks: the lock is the existence of a file."""

    def acquire(name: str):
        lock = SoftFileLock(os.path.join(folder, f"soft-{name}"))
        lock.acquire()
        return lock.release

    yield acquire
