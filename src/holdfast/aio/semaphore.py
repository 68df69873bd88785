"""Semaphores: the way to one of a fixed number of seats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.core.pool import pool, semaphore

if TYPE_CHECKING:
    from holdfast.core.pool.pool import PoolStats


class Permit(semaphore.PermitBase, Lease):
    """Like `blocking.Permit`, awaited."""


class Semaphore(semaphore.SemaphoreBase, Lock):
    """Like `blocking.Semaphore`, awaited."""

    _lease = Permit

    async def resize(self, permits: int) -> None:
        """Like `blocking.Semaphore.resize`, awaited."""
        await semaphore.resize(self, permits)

    async def stats(self, limit: int = 1000) -> PoolStats:
        """Like `blocking.Semaphore.stats`, awaited."""
        return await pool.stats(self, limit)
