"""Read-write locks: the ways to read and to write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.commands import READ, WRITE
from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.pool import pool, rwlock

if TYPE_CHECKING:
    from holdfast.clock import Seconds
    from holdfast.core.client import Client
    from holdfast.core.pool.pool import PoolStats


class RWLease(rwlock.AccessBase, Lease):
    """Like `blocking.RWLease`, awaited."""


class RWLockMode(rwlock.SideBase, Lock):
    """Like `blocking.RWLockMode`, awaited."""

    _lease = RWLease

    async def acquire(self, timeout: Seconds | Unset | None = UNSET) -> RWLease:
        """Like `blocking.RWLockMode.acquire`, awaited."""
        self._refuse_other_side(asyncio.current_task())
        return cast("RWLease", await super().acquire(timeout))

    async def __aenter__(self) -> Lease:
        self._refuse_other_side(asyncio.current_task())
        return await super().__aenter__()


class RWLock:
    """Like `blocking.RWLock`, awaited."""

    def __init__(self, client: Client, name: str, **settings: Any) -> None:
        self._reading = RWLockMode(client, name, side=READ, **settings)
        self._writing = RWLockMode(client, name, side=WRITE, **settings)

    @property
    def name(self) -> str:
        return self._reading.name

    def __repr__(self) -> str:
        return f"<rwlock {self.name!r} on {self._reading._client.url}>"

    def read(self) -> RWLockMode:
        """Like `blocking.RWLock.read`."""
        return self._reading

    def write(self) -> RWLockMode:
        """Like `blocking.RWLock.write`."""
        return self._writing

    async def stats(self, limit: int = 1000) -> PoolStats:
        """Like `blocking.RWLock.stats`, awaited."""
        return await pool.stats(self._reading, limit)
