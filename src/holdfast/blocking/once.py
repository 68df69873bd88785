"""`once`: at most one success per idempotency key."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from holdfast.blocking.lease import Lease
from holdfast.clock import Seconds
from holdfast.core.lease.lock import name_from_arguments, refuse_coroutine, refuse_unfinished
from holdfast.core.once.once import OnceBase, OnceClaimBase
from holdfast.core.step import run
from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")


class OnceClaim(OnceClaimBase, Lease):
    """The claim of one key: true if the work is yours to do, under a lease; false if it was done before."""

    def __enter__(self) -> OnceClaim:
        try:
            run(self._begin())
            self.delivered = True
            return self  # noqa: TRY300 - an interrupt may arrive even here
        except BaseException:
            self.undo()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            run(self._leave(error))
        finally:
            self.end()
        return False


class Once(OnceBase):
    """At most one success per idempotency key, in a window of time. Threads may share it."""

    def first(self, key: str, *, payload: Any = None, timeout: Seconds | None = 0) -> OnceClaim:
        """Return a claim of the key, to be entered as a block; it is false inside if the work was already done.

        `key`: the idempotency key. `payload`: bytes or a JSON value; the same key with another payload raises
        `PayloadMismatch`. `timeout`: seconds to wait for another caller that is doing the work; `None` waits for ever,
        `0` asks once, then `NotAcquired`.
        """
        return OnceClaim(*self._claim_fields(key, payload, timeout))

    def call(self, key: str, work: Callable[[], R], *, payload: Any = None, timeout: Seconds | None = 0) -> R:
        """Call `work` and store its result; return the stored result if the work of the key was already done.

        `key`, `payload`, `timeout`: as in `first`. `work`: a function without arguments. If it raises, the next
        call tries again.
        """
        refuse_coroutine(work)
        first = self.first(key, payload=payload, timeout=timeout)
        try:
            with first:
                if first:
                    first.result = work()
                    refuse_unfinished(work, first.result)
        except LeaseLost as lost:
            lost.result = first.result
            raise
        result: R = first.result
        return result

    def seen(self, key: str) -> bool:
        """Return whether the work of `key` was done in the window."""
        return run(self._seen(key))

    def forget(self, key: str) -> None:
        """Delete the marker of `key`, so that its work can be done again."""
        run(self._forget(key))

    def __call__(self, key: str, *, timeout: Seconds | None = 0) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function so that it succeeds at most once per key; a duplicate returns the stored result.

        `key`: the idempotency key; fields in braces are filled in from the arguments. `timeout`: as in `first`.
        """

        def decorate(work: Callable[P, R]) -> Callable[P, R]:
            refuse_coroutine(work)
            key_of = name_from_arguments(key, work)

            @functools.wraps(work)
            def at_most_once(*args: P.args, **kwargs: P.kwargs) -> R:
                return self.call(key_of(args, kwargs), functools.partial(work, *args, **kwargs), timeout=timeout)

            return at_most_once

        return decorate
