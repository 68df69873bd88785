"""Semaphores: the way to one of a fixed number of seats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.blocking.lease import Lease
from holdfast.blocking.lock import Lock
from holdfast.core.pool import pool, semaphore
from holdfast.core.step import run

if TYPE_CHECKING:
    from holdfast.core.pool.pool import PoolStats


class Permit(semaphore.PermitBase, Lease):
    """The lease of a seat: a permit with a number and a fence of its own."""


class Semaphore(semaphore.SemaphoreBase, Lock):
    """A way to get one of a fixed number of seats. Use it like a lock."""

    _lease = Permit

    def resize(self, permits: int) -> None:
        """Have another number of permits, for everybody; seats beyond it go when they come back."""
        run(semaphore.resize(self, permits))

    def stats(self, limit: int = 1000) -> PoolStats:
        """How many seats there are, who has them, and who waits."""
        return run(pool.stats(self, limit))
