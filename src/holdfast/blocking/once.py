"""Once: at most one success for a key."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from holdfast.blocking.lease import Lease
from holdfast.clock import Seconds
from holdfast.core.lease.lock import naming, refuse_coroutine, refuse_unfinished
from holdfast.core.once import once
from holdfast.core.once.once import OnceBase, Outcome, digest_of
from holdfast.core.step import run
from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")


class OnceClaim(Outcome, Lease):
    """The lease of whoever is first with a key; false when the work has been done: then there is nothing to hold."""

    def __enter__(self) -> OnceClaim:
        try:
            run(once.begin(self))
            self._owned = True
            return self  # noqa: TRY300 - an interrupt may strike even here
        except BaseException:
            once.undo(self)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            run(once.leave(self, error))
        finally:
            once.ended(self)
        return False


class Once(OnceBase):
    """At most one success for each key, in a window of time. Threads may share it."""

    def first(self, key: str, *, payload: Any = None, timeout: Seconds | None = 0) -> OnceClaim:
        """A block for whoever is first; false inside when it has been done. `NotAcquired` while somebody is at it."""
        return once.prepared(OnceClaim(*self._fields(key, digest := digest_of(payload))), self, digest, timeout)  # type: ignore[no-any-return]

    def call(self, key: str, work: Callable[[], R], *, payload: Any = None, timeout: Seconds | None = 0) -> R:
        """What the work gives, or gave before, if it has been done. An error of the work lets it be tried again."""
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
        """Whether it has been done."""
        return run(once.seen(self, key))

    def forget(self, key: str) -> None:
        """Let it be done again."""
        run(once.forget(self, key))

    def __call__(self, key: str, *, timeout: Seconds | None = 0) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Have a function do its work once for each key; fields in braces are filled from its arguments."""

        def decorate(work: Callable[P, R]) -> Callable[P, R]:
            refuse_coroutine(work)
            key_of = naming(key, work)

            @functools.wraps(work)
            def at_most_once(*args: P.args, **kwargs: P.kwargs) -> R:
                return self.call(key_of(args, kwargs), functools.partial(work, *args, **kwargs), timeout=timeout)

            return at_most_once

        return decorate
