"""Read-write locks: the ways to read and to write."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from holdfast.blocking.lease import Lease
from holdfast.blocking.lock import Lock
from holdfast.commands import READ, WRITE
from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.pool import pool, rwlock
from holdfast.core.step import run

if TYPE_CHECKING:
    from holdfast.clock import Seconds
    from holdfast.core.client import Client
    from holdfast.core.pool.pool import PoolStats


class RWLease(rwlock.AccessBase, Lease):
    """The lease of a reader or of the writer."""


class RWLockMode(rwlock.SideBase, Lock):
    """One side of a read-write lock. Use it like a lock."""

    _lease = RWLease

    def acquire(self, timeout: Seconds | Unset | None = UNSET) -> RWLease:
        """Wait for access; `NotAcquired` when patience ends."""
        self._refuse_other_side(threading.get_ident())
        return cast("RWLease", super().acquire(timeout))

    def __enter__(self) -> Lease:
        self._refuse_other_side(threading.get_ident())
        return super().__enter__()


class RWLock:
    """Many readers or one writer. `with rw.read():` or `with rw.write() as lease:`."""

    def __init__(self, client: Client, name: str, **settings: Any) -> None:
        self._reading = RWLockMode(client, name, side=READ, **settings)
        self._writing = RWLockMode(client, name, side=WRITE, **settings)

    @property
    def name(self) -> str:
        return self._reading.name

    def __repr__(self) -> str:
        return f"<rwlock {self.name!r} on {self._reading._client.url}>"

    def read(self) -> RWLockMode:
        """The side of readers: any number of them at once, while nobody writes."""
        return self._reading

    def write(self) -> RWLockMode:
        """The side of the writer: alone, under a fence that exceeds all before it."""
        return self._writing

    def stats(self, limit: int = 1000) -> PoolStats:
        """Who is inside, and who waits."""
        return run(pool.stats(self._reading, limit))
