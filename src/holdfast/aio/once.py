"""Once: at most one success for a key."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from holdfast.aio.lease import Lease
from holdfast.clock import Seconds
from holdfast.core.lease.lock import awaitable, is_coroutine_function, naming, refuse_generator, refuse_plain
from holdfast.core.once import once
from holdfast.core.once.once import OnceBase, Outcome, digest_of
from holdfast.errors import InvalidConfig, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")


class OnceClaim(Outcome, Lease):
    """Like `blocking.OnceClaim`, awaited."""

    async def __aenter__(self) -> OnceClaim:
        try:
            await once.begin(self)
            self._owned = True
            return self  # noqa: TRY300 - an interrupt may strike even here
        except BaseException:
            once.undo(self)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            await once.leave(self, error)
        finally:
            once.ended(self)
        return False


class Once(OnceBase):
    """Like `blocking.Once`, awaited."""

    def first(self, key: str, *, payload: Any = None, timeout: Seconds | None = 0) -> OnceClaim:
        """Like `blocking.Once.first`."""
        return once.prepared(OnceClaim(*self._fields(key, digest := digest_of(payload))), self, digest, timeout)  # type: ignore[no-any-return]

    async def call(
        self, key: str, work: Callable[[], Awaitable[R]], *, payload: Any = None, timeout: Seconds | None = 0
    ) -> R:
        """Like `blocking.Once.call`, awaited. A plain function is refused before it runs."""
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
        """Like `blocking.Once.seen`, awaited."""
        return await once.seen(self, key)

    async def forget(self, key: str) -> None:
        """Like `blocking.Once.forget`, awaited."""
        await once.forget(self, key)

    def __call__(
        self, key: str, *, timeout: Seconds | None = 0
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
        """Like `blocking.Once.__call__`, for coroutine functions."""

        def decorate(work: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            refuse_generator(work)
            if not is_coroutine_function(work):
                name = getattr(work, "__qualname__", work)
                raise InvalidConfig("function", name, "a plain function needs the blocking face")
            key_of = naming(key, work)

            @functools.wraps(work)
            async def at_most_once(*args: P.args, **kwargs: P.kwargs) -> R:
                return await self.call(key_of(args, kwargs), functools.partial(work, *args, **kwargs), timeout=timeout)

            return at_most_once

        return decorate
