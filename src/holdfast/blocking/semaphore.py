"""Semaphores: acquire one of a fixed number of permits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.blocking.lease import Lease
from holdfast.blocking.lock import Lock
from holdfast.core.pool.semaphore import PermitBase, SemaphoreBase
from holdfast.core.step import run

if TYPE_CHECKING:
    from holdfast.core.pool.pool import PoolStats


class Permit(PermitBase, Lease):
    """The lease of a permit: it has a number and a fence of its own."""


class Semaphore(SemaphoreBase, Lock):
    """A semaphore: a fixed number of permits. Use it like a lock."""

    _lease = Permit

    def resize(self, permits: int) -> None:
        """Change the number of permits for all users.

        `permits`: the new number. Permits above it disappear when they are released.
        """
        run(self._resize(permits))

    def stats(self, limit: int = 1000) -> PoolStats:
        """Return the number of permits, their holders and the waiters. `limit`: the maximum number of each."""
        return run(self._stats(limit))
