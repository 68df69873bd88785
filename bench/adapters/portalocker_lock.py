"""portalocker: a kernel lock on a file, polled four times a second. No fence, no ttl."""

from __future__ import annotations

import os
from contextlib import contextmanager

import portalocker

PATIENCE_S = 120


@contextmanager
def blocking(folder: str, ttl: float):  # noqa: ARG001 - the kernel ends it with the process
    def acquire(name: str):
        lock = portalocker.Lock(os.path.join(folder, f"portalocker-{name}"), timeout=PATIENCE_S)
        lock.acquire()
        return lock.release

    yield acquire
