"""Leadership: a lock whose holder can be asked to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from holdfast.aio.lease import Lease, LossEvent, cancel_on_loss, settled
from holdfast.aio.lock import Lock
from holdfast.clock import Seconds
from holdfast.core.lease import acquire as lifecycle
from holdfast.core.lease import leader
from holdfast.core.lease.lock import awaitable, refuse_plain
from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType

    from holdfast.core.lease.leader import LeaderStatus

R = TypeVar("R")


class Term(Lease):
    """Like `blocking.Term`, awaited."""

    _candidacy: leader.Candidacy

    @property
    def over(self) -> LossEvent:
        """Set when the work should end: the term was resigned, handed over, or lost."""
        return LossEvent(self, lambda: self._candidacy.is_over(self) or self._is_lost())


class Leader:
    """Like `blocking.Leader`, awaited."""

    def __init__(self, lock: Lock, candidacy: leader.Candidacy) -> None:
        self._lock = lock
        self._candidacy = candidacy

    def __repr__(self) -> str:
        return leader.shown(self._candidacy)

    @property
    def name(self) -> str:
        return self._lock.name

    @property
    def candidate(self) -> str:
        return self._candidacy.candidate

    async def run(self, work: Callable[[Term], Awaitable[R]]) -> R:
        """Like `blocking.Leader.run`, awaited. A plain function is refused before it runs."""
        refuse_plain(work)
        done: list[R] = []
        try:
            async with self as term:
                done.append(await awaitable(work, work(term)))
        except LeaseLost as lost:
            lost.result = lost.result if not done else done[0]
            raise
        return done[0]

    async def current(self) -> LeaderStatus | None:
        """Like `blocking.Leader.current`, awaited."""
        return await leader.current(self._candidacy)

    async def candidates(self) -> list[str]:
        """Like `blocking.Leader.candidates`, awaited."""
        return await leader.candidates(self._candidacy)

    async def observe(self, interval: Seconds = 1.0) -> AsyncIterator[LeaderStatus | None]:
        """Like `blocking.Leader.observe`, awaited."""
        watch = leader.LeaderWatch(self._candidacy, interval)
        while True:
            yield await watch.change()

    def resign(self) -> None:
        """Like `blocking.Leader.resign`; only a word to the running term, so there is nothing to await."""
        self._candidacy.step_down()

    async def hand_over(self, to: str) -> None:
        """Like `blocking.Leader.hand_over`, awaited."""
        await leader.hand_over(self._candidacy, to)

    async def __aenter__(self) -> Term:
        term = Term(*self._lock._fields())  # the leader is a shape around its lock
        term._candidacy = self._candidacy
        try:
            self._candidacy.enter(term)
            await lifecycle.acquire(term, self._lock._timeout_ns)
            self._candidacy.begin(term)
            cancel_on_loss(term, self._lock._on_loss)
            term._owned = True
            return term  # noqa: TRY300 - as above
        except BaseException:
            self._candidacy.forget(term)
            lifecycle.undo(term)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        term = self._candidacy.term
        try:
            await leader.end_term(self._candidacy, error if term is None else settled(term, error))
        finally:
            leader.ended(self._candidacy, term)
        return False
