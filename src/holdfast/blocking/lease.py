"""Leases: what a caller holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.clock import Seconds
from holdfast.core.lease import acquire as lifecycle
from holdfast.core.lease.lease import LeaseBase, LossEventBase
from holdfast.core.step import run

if TYPE_CHECKING:
    from types import TracebackType


class LossEvent(LossEventBase):
    """Something that happens once to a lease: true when it has."""

    __slots__ = ()

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Block until it happens; false if it has not by then, or if the lease ended well."""
        return run(self._wait(timeout))


class Lease(LeaseBase):
    """A right to a name, until it is released, lost or expired."""

    @property
    def lost(self) -> LossEvent:
        """Set when the lease can no longer be vouched for."""
        return LossEvent(self, self._is_lost)

    def release(self) -> None:
        """Give it back. Raises `LeaseLost` if it was lost; a second release does nothing."""
        run(lifecycle.release(self))

    def __enter__(self) -> Lease:
        self.check()  # nobody enters with what is over
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            run(lifecycle.leave(self, error))
        finally:
            lifecycle.end(self)
        return False
