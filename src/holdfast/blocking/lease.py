"""Leases: the object that a caller holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.clock import Seconds
from holdfast.core.lease.lease import LeaseBase, LossEventBase
from holdfast.core.step import run

if TYPE_CHECKING:
    from types import TracebackType


class LossEvent(LossEventBase):
    """An event that happens at most once to a lease, such as its loss: true when it has happened."""

    __slots__ = ()

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Block until the event happens; return false after the timeout, or if the lease ended without it.

        `timeout`: seconds to wait; `None` waits for ever.
        """
        return run(self._wait(timeout))


class Lease(LeaseBase):
    """A right to a name, until it is released, lost or expired."""

    @property
    def lost(self) -> LossEvent:
        """Set when the lease can no longer be trusted."""
        return LossEvent(self, self.is_lost)

    def release(self) -> None:
        """Give the lease back. Raise `LeaseLost` if it was lost; a second release does nothing."""
        run(self.release_steps())

    def extend(self, ttl: Seconds) -> None:
        """Make the lease last longer; raise `LeaseLost` if it is no longer held.

        `ttl`: the lease lasts at least this many seconds from now, and the same after each renewal; never less than
            before.
        """
        run(self.extend_steps(ttl))

    def __enter__(self) -> Lease:
        self.check()  # a block must not start with a lease that is over
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            run(self.leave_steps(error))
        finally:
            self.end()
        return False
