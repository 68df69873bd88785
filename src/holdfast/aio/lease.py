"""Leases: the object that a caller holds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from holdfast.clock import Seconds
from holdfast.core.lease.lease import LeaseBase, LossEventBase

if TYPE_CHECKING:
    from types import TracebackType


class LossEvent(LossEventBase):
    """An event that happens at most once to a lease, such as its loss: true when it has happened."""

    __slots__ = ()

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the event happens; return false after the timeout, or if the lease ended without it.

        `timeout`: seconds to wait; `None` waits for ever.
        """
        return await self._wait(timeout)


class Lease(LeaseBase):
    """A right to a name, until it is released, lost or expired."""

    @property
    def lost(self) -> LossEvent:
        """Set when the lease can no longer be trusted."""
        return LossEvent(self, self.is_lost)

    async def release(self) -> None:
        """Give the lease back. Raise `LeaseLost` if it was lost; a second release does nothing."""
        await self.release_steps()

    async def extend(self, ttl: Seconds) -> None:
        """Make the lease last longer; raise `LeaseLost` if it is no longer held.

        `ttl`: the lease lasts at least this many seconds from now, and the same after each renewal; never less than
            before.
        """
        await self.extend_steps(ttl)

    async def __aenter__(self) -> Lease:
        self.check()  # a block must not start with a lease that is over
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            await self.leave_steps(error)
        finally:
            self.end()
        return False


class TaskCanceller:
    """The policy `on_loss="cancel"`: cancels the task that entered the block when its lease is lost."""

    __slots__ = ("_cancelled", "_task")

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._cancelled = False

    def __call__(self, _lease: LeaseBase) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def outcome(self, error: BaseException | None) -> BaseException | None:
        """Return the work's own error: remove the cancellation by this object, and keep one from outside."""
        task, self._task = self._task, None  # from now on it is too late to cancel
        if task is None or not self._cancelled:
            return error
        ours = task.uncancel() == 0
        return None if ours and isinstance(error, asyncio.CancelledError) else error


def cancel_on_loss(policy: object, *leases: LeaseBase) -> None:
    """With the policy `"cancel"`, make the loss of any of these leases cancel the task that is entering its block."""
    if policy == "cancel":
        canceller = TaskCanceller()
        for lease in leases:
            lease.on_loss = canceller


def work_outcome(lease: LeaseBase, error: BaseException | None) -> BaseException | None:
    """Return the error of the work in a block, without a cancellation that the loss of its lease caused."""
    return lease.on_loss.outcome(error) if isinstance(lease.on_loss, TaskCanceller) else error
