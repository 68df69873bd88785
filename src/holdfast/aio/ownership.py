"""Owners: one holder per key, for hours."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal

from holdfast.aio.build import run_blocking
from holdfast.aio.lease import LossEvent
from holdfast.clock import Seconds, timeout_ns
from holdfast.core.ownership import assignment as works
from holdfast.core.ownership import claim as claims
from holdfast.core.ownership import consumer as post
from holdfast.core.ownership import owner
from holdfast.core.queue import message

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from holdfast.core.ownership.assignment import News


class Assignment(works.AssignmentBase):
    """Like `blocking.Assignment`, awaited."""

    @property
    def lost(self) -> LossEvent:
        """Set while somebody else may have it."""
        return LossEvent(self._lease, self._is_lost, self._is_over)

    async def done(self) -> None:
        """Like `blocking.Assignment.done`, awaited."""
        await works.done(self)

    async def release(self, delay: Seconds = 0) -> None:
        """Like `blocking.Assignment.release`, awaited."""
        await works.release(self, delay)

    async def fail(self, reason: str, delay: Seconds | None = None) -> None:
        """Like `blocking.Assignment.fail`, awaited."""
        await works.fail(self, reason, delay)

    async def verify(self) -> None:
        """Like `blocking.Assignment.verify`, awaited."""
        await message.verify(self)


class Post(post.Post):
    """What an owner is in one queue."""

    _Message = Assignment


class Owner(owner.OwnerBase):
    """Like `blocking.Owner`, awaited."""

    _Post = Post

    async def next(self, timeout: Seconds | None = None) -> News | None:
        """Like `blocking.Owner.next`, awaited."""
        return await owner.news(self, timeout_ns(timeout))

    async def claim(self, key: str) -> Assignment:
        """Like `blocking.Owner.claim`, awaited."""
        work: Assignment = await claims.claim(self, key)
        return work

    async def run(self, handle: Callable[[News], Any]) -> None:
        """Like `blocking.Owner.run`, awaited."""
        async for event in self:
            said = handle(event)
            if inspect.isawaitable(said):
                await said

    def __aiter__(self) -> Owner:
        return self

    async def __anext__(self) -> News:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Owner:
        await owner.enter(self, run_blocking)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await owner.leave(self, run_blocking)
        return False
