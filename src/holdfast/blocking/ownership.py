"""Owners: one holder per key, for hours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from holdfast.blocking.build import run_blocking
from holdfast.blocking.lease import LossEvent
from holdfast.clock import Seconds, timeout_ns
from holdfast.core.lease.lock import refuse_coroutine, refuse_unfinished
from holdfast.core.ownership import assignment as works
from holdfast.core.ownership import claim as claims
from holdfast.core.ownership import consumer as post
from holdfast.core.ownership import owner
from holdfast.core.queue import message
from holdfast.core.step import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from holdfast.core.ownership.assignment import News


class Assignment(works.AssignmentBase):
    """A key that is ours, until `done`, `release` or `fail` is said of it, or it is lost."""

    @property
    def lost(self) -> LossEvent:
        """Set while somebody else may have it."""
        return LossEvent(self._lease, self._is_lost, self._is_over)

    def done(self) -> None:
        """It is done with, for good. `LeaseLost`, as of all that follow, if somebody else owns the key by now."""
        run(works.done(self))

    def release(self, delay: Seconds = 0) -> None:
        """Hand it back for others: no attempt was used."""
        run(works.release(self, delay))

    def fail(self, reason: str, delay: Seconds | None = None) -> None:
        """It went wrong: others try again after the delay, else by the queue's backoff. The last attempt is dead."""
        run(works.fail(self, reason, delay))

    def verify(self) -> None:
        """Ask the engine whether it is still ours: `LeaseLost` if it is not."""
        run(message.verify(self))


class Post(post.Post):
    """What an owner is in one queue."""

    _Message = Assignment


class Owner(owner.OwnerBase):
    """Owns keys, inside a `with` block: `for event in owner` tells which, and what becomes of them."""

    _Post = Post

    def next(self, timeout: Seconds | None = None) -> News | None:
        """What is new; `None` if there is nothing in time, or nothing more to come."""
        return run(owner.news(self, timeout_ns(timeout)))

    def claim(self, key: str) -> Assignment:
        """Own a key now, without waiting, if nobody can vouch for it; `NotAcquired` if somebody does, or we have it."""
        work: Assignment = run(claims.claim(self, key))
        return work

    def run(self, handle: Callable[[News], Any]) -> None:
        """Call this with everything that is new, until it has ended."""
        refuse_coroutine(handle)
        for event in self:
            refuse_unfinished(handle, handle(event))

    def __iter__(self) -> Owner:
        return self

    def __next__(self) -> News:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Owner:
        run(owner.enter(self, run_blocking))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        run(owner.leave(self, run_blocking))
        return False
