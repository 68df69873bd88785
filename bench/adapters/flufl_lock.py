"""flufl.lock: a hard link on a file, made for NFS; a dead holder is detected by age, on the local clock. No fence."""

from __future__ import annotations

import os
from contextlib import contextmanager

from flufl.lock import Lock


@contextmanager
def blocking(folder: str, ttl: float):
    def acquire(name: str):
        lock = Lock(os.path.join(folder, f"flufl-{name}"), lifetime=ttl)
        lock.lock()
        return lock.unlock

    yield acquire
