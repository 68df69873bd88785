"""`once`: at most one success per idempotency key."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from holdfast.aio.lease import Lease
from holdfast.clock import Seconds
from holdfast.core.lease.lock import (
    awaitable,
    is_coroutine_function,
    name_from_arguments,
    refuse_generator,
    refuse_plain,
)
from holdfast.core.once.once import OnceBase, OnceClaimBase
from holdfast.errors import InvalidConfig, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")


class OnceClaim(OnceClaimBase, Lease):
    """The claim of one key: true if the work is yours to do, under a lease; false if it was done before."""

    async def __aenter__(self) -> OnceClaim:
        try:
            await self._begin()
            self.delivered = True
            return self  # noqa: TRY300 - an interrupt may arrive even here
        except BaseException:
            self.undo()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            await self._leave(error)
        finally:
            self.end()
        return False


class Once(OnceBase):
    """At most one success per idempotency key, in a window of time. Tasks may share it."""

    def first(self, key: str, *, payload: Any = None, timeout: Seconds | None = 0) -> OnceClaim:
        """Return a claim of the key, to be entered as a block; it is false inside if the work was already done.

        `key`: the idempotency key. `payload`: bytes or a JSON value; the same key with another payload raises
        `PayloadMismatch`. `timeout`: seconds to wait for another caller that is doing the work; `None` waits for ever,
        `0` asks once, then `NotAcquired`.
        """
        return OnceClaim(*self._claim_fields(key, payload, timeout))

    async def call(
        self, key: str, work: Callable[[], Awaitable[R]], *, payload: Any = None, timeout: Seconds | None = 0
    ) -> R:
        """Call `work` and store its result; return the stored result if the work of the key was already done.

        `key`, `payload`, `timeout`: as in `first`. `work`: a coroutine function without arguments. If it raises, the
        next call tries again.
        """
        refuse_plain(work)
        first = self.first(key, payload=payload, timeout=timeout)
        try:
            async with first:
                if first:
                    first.result = await awaitable(work, work())
        except LeaseLost as lost:
            lost.result = first.result
            raise
        result: R = first.result
        return result

    async def seen(self, key: str) -> bool:
        """Return whether the work of `key` was done in the window."""
        return await self._seen(key)

    async def forget(self, key: str) -> None:
        """Delete the marker of `key`, so that its work can be done again."""
        await self._forget(key)

    def __call__(
        self, key: str, *, timeout: Seconds | None = 0
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
        """Decorate a coroutine function so that it succeeds at most once per key; a duplicate gets the stored result.

        `key`: the idempotency key; fields in braces are filled in from the arguments. `timeout`: as in `first`.
        """

        def decorate(work: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            refuse_generator(work)
            if not is_coroutine_function(work):
                name = getattr(work, "__qualname__", work)
                raise InvalidConfig("function", name, "a plain function needs the blocking face")
            key_of = name_from_arguments(key, work)

            @functools.wraps(work)
            async def at_most_once(*args: P.args, **kwargs: P.kwargs) -> R:
                return await self.call(key_of(args, kwargs), functools.partial(work, *args, **kwargs), timeout=timeout)

            return at_most_once

        return decorate
