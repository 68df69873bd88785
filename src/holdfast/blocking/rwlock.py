"""Read-write locks: acquire the lease of a reader or of the writer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from holdfast.blocking.lease import Lease
from holdfast.blocking.lock import Lock
from holdfast.commands import READ, WRITE
from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.pool.rwlock import RWLeaseBase, RWLockBase, RWLockModeBase
from holdfast.core.step import run

if TYPE_CHECKING:
    from holdfast.clock import Seconds
    from holdfast.core.client import Client
    from holdfast.core.pool.pool import PoolStats


class RWLease(RWLeaseBase, Lease):
    """The lease of a reader or of the writer."""


class RWLockMode(RWLockModeBase, Lock):
    """One mode of a read-write lock, reading or writing. Use it like a lock."""

    _lease = RWLease

    def acquire(self, timeout: Seconds | Unset | None = UNSET) -> RWLease:
        """Acquire the lease of a reader or of the writer; raise `NotAcquired` when the timeout ends.

        `timeout`: seconds to wait; `None` waits for ever, `0` asks once. Without it, the lock's own timeout.
        """
        self._refuse_other_mode(threading.get_ident())
        return cast("RWLease", super().acquire(timeout))

    def __enter__(self) -> Lease:
        self._refuse_other_mode(threading.get_ident())
        return super().__enter__()


class RWLock(RWLockBase):
    """A read-write lock: many readers or one writer. `with rw.read():` or `with rw.write() as lease:`."""

    def __init__(self, client: Client, name: str, **settings: Any) -> None:
        self._reading = RWLockMode(client, name, mode=READ, **settings)
        self._writing = RWLockMode(client, name, mode=WRITE, **settings)
        super().__init__(client, self._reading)

    def read(self) -> RWLockMode:
        """Return the lock for readers: any number of them hold it at once, while no writer does."""
        return self._reading

    def write(self) -> RWLockMode:
        """Return the lock for writers: one writer holds it alone, under a fence above all earlier ones."""
        return self._writing

    def stats(self, limit: int = 1000) -> PoolStats:
        """Return the holders and the waiters. `limit`: the maximum number of each."""
        return run(self._stats(limit))
