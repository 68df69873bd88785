"""Owners: consumers that keep keys for hours, with one owner per key at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from holdfast.blocking.build import run_blocking
from holdfast.blocking.lease import LossEvent
from holdfast.clock import Seconds, timeout_ns
from holdfast.core.lease.lock import refuse_coroutine, refuse_unfinished
from holdfast.core.ownership.assignment import AssignmentBase
from holdfast.core.ownership.owner import OwnerBase
from holdfast.core.step import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from holdfast.core.ownership.assignment import OwnerEvent


class Assignment(AssignmentBase):
    """A key that this owner holds, until `ack`, `retry` or `release`, or until it is lost.

    These methods, and `verify`, raise `LeaseLost` if another owner holds the key by now, or may hold it and the engine
    does not answer; `Unavailable` with the outcome `"unknown"` if only the engine does not answer.
    """

    @property
    def lost(self) -> LossEvent:
        """Set while another owner may have the key."""
        return LossEvent(self._held.session, self._held.is_lost, self._held.is_over)

    def ack(self) -> None:
        """Record that the work on the key is done; the engine deletes its message, and the next one may come."""
        run(self._held.ack())

    def release(self, delay: Seconds = 0) -> None:
        """Give the key back for other owners; no attempt is used.

        `delay`: seconds before it is ready again.
        """
        run(self._held.release(delay))

    def retry(self, delay: Seconds | None = None, reason: str = "") -> None:
        """Record a failed attempt; the key is assigned again, or becomes a dead letter after the last attempt.

        `delay`: seconds before the next attempt; `None` uses the queue's backoff.
        `reason`: text that is stored as the error of this attempt.
        """
        run(self._held.retry(delay, reason))

    def verify(self) -> None:
        """Ask the engine whether this owner still holds the key; raise `LeaseLost` if it does not."""
        run(self._held.verify())


class Owner(OwnerBase):
    """Holds keys, inside a `with` block: `for event in owner` reports assignments and their losses."""

    def next(self, timeout: Seconds | None = None) -> OwnerEvent | None:
        """Return the next event; `None` after the timeout, or after the last event.

        `timeout`: seconds to wait; `None` waits for ever, 0 does not wait.
        """
        return run(self._core.next_event(timeout_ns(timeout)))

    def claim(self, key: str) -> Assignment:
        """Take over a key now, and return its assignment; raise `NotAcquired` if a live owner holds it.

        `key`: the key to take over.
        """
        assignment: Assignment = run(self._core.claim(key))
        return assignment

    def run(self, handle: Callable[[OwnerEvent], Any]) -> None:
        """Call a function with every event, until the last one.

        `handle`: a function that is called with each event.
        """
        refuse_coroutine(handle)
        for event in self:
            refuse_unfinished(handle, handle(event))

    def __iter__(self) -> Owner:
        return self

    def __next__(self) -> OwnerEvent:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Owner:
        run(self._core.enter(run_blocking))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        run(self._core.leave(run_blocking))
        return False
