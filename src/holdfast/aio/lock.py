"""Locks: the way to a lease of one name."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar, cast

from holdfast.aio.lease import Lease, cancel_on_loss, settled
from holdfast.clock import Seconds
from holdfast.core.lease import acquire as lifecycle
from holdfast.core.lease.lock import UNSET, LockBase, Unset, is_coroutine_function, refuse_generator
from holdfast.errors import InvalidConfig, LeaseLost, NotAcquired

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType


P = ParamSpec("P")
R = TypeVar("R")

POLICIES = ("report", "cancel")


class Lock(LockBase):
    """Like `blocking.Lock`, awaited."""

    _lease: type[Lease] = Lease

    async def acquire(self, timeout: Seconds | Unset | None = UNSET) -> Lease:
        """Like `blocking.Lock.acquire`, awaited."""
        wait_ns = self._timeout_of(timeout)
        lease = self._lease(*self._fields())
        try:
            await lifecycle.acquire(lease, wait_ns)
            lease._owned = True
            return lease  # noqa: TRY300 - an interrupt may strike even here
        except BaseException:
            lifecycle.undo(lease)
            raise

    async def try_acquire(self) -> Lease | None:
        """Like `blocking.Lock.try_acquire`, awaited."""
        try:
            return await self.acquire(timeout=0)
        except NotAcquired:
            return None

    async def __aenter__(self) -> Lease:
        who = asyncio.current_task()
        depth, lease = self._depth(who), cast("Lease | None", self._inside(who))
        fresh = lease is None
        lease = lease or self._lease(*self._fields())
        try:
            if fresh:
                await lifecycle.acquire(lease, self._timeout_ns)
            self._enter(who, lease)
            if fresh:
                cancel_on_loss(lease, self._on_loss)
            lease._owned = True
            return lease  # noqa: TRY300 - as above
        except BaseException:
            self._back_to(who, depth)
            if fresh:
                lifecycle.undo(lease)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        block = None
        try:
            try:
                block = self._leaving(asyncio.current_task())
                if block.lease is not None:
                    await lifecycle.leave(block.lease, settled(block.lease, error))
            finally:
                block = self._left(block, asyncio.current_task())
        finally:
            self._left(block, asyncio.current_task())
        return False

    def __call__(self, work: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """Like `blocking.Lock.__call__`, for coroutine functions."""
        refuse_generator(work)
        if not is_coroutine_function(work):
            name = getattr(work, "__qualname__", work)
            raise InvalidConfig("function", name, "a plain function needs the lock of the blocking face")
        name = self._naming(work)

        @functools.wraps(work)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            lock = self._like(name(args, kwargs))
            done: list[R] = []
            try:
                async with lock:
                    done.append(await work(*args, **kwargs))
            except LeaseLost as lost:
                lost.result = lost.result if not done else done[0]
                raise
            return done[0]

        return locked

    def _like(self, name: str) -> Lock:
        """The lock of the same settings for another name; one and the same while anybody is inside."""
        if name == self.name:
            return self
        like = type(self)(self._client, name, policies=POLICIES, **self._settings())
        lock: Lock = self._likes.setdefault(name, like)
        return lock
