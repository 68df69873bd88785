"""Leases: what a caller holds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from holdfast.clock import Seconds
from holdfast.core.lease import acquire as lifecycle
from holdfast.core.lease.lease import LeaseBase, LossEventBase

if TYPE_CHECKING:
    from types import TracebackType


class LossEvent(LossEventBase):
    """Like `blocking.LossEvent`, awaited."""

    __slots__ = ()

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Like `blocking.LossEvent.wait`, awaited."""
        return await self._wait(timeout)


class Lease(LeaseBase):
    """Like `blocking.Lease`, awaited."""

    _task: asyncio.Task[Any] | None
    _cancelled: bool

    @property
    def lost(self) -> LossEvent:
        """Set when the lease can no longer be vouched for."""
        return LossEvent(self, self._is_lost)

    async def release(self) -> None:
        """Like `blocking.Lease.release`, awaited."""
        await lifecycle.release(self)

    async def __aenter__(self) -> Lease:
        self.check()  # nobody enters with what is over
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            await lifecycle.leave(self, error)
        finally:
            lifecycle.end(self)
        return False


def cancel_on_loss(lease: Lease, policy: object) -> None:
    """Have the loss of this lease cancel the task that is just entering its block."""
    if policy != "cancel":
        return
    lease._task = asyncio.current_task()  # the face's own class
    lease._cancelled = False
    lease._on_loss = _cancel


def _cancel(lease: Lease) -> None:
    if lease._task is not None:
        lease._cancelled = True
        lease._task.cancel()


def settled(lease: LeaseBase, error: BaseException | None) -> BaseException | None:
    """The work's own outcome: a cancellation that we caused is taken back, one from outside stays."""
    task = getattr(lease, "_task", None)
    if task is None:
        return error
    lease._task = None  # type: ignore[attr-defined]  # from now on it is too late to cancel
    if not lease._cancelled:  # type: ignore[attr-defined]
        return error
    ours = task.uncancel() == 0
    return None if ours and isinstance(error, asyncio.CancelledError) else error
