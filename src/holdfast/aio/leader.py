"""Leader election: a lock whose holder can be asked to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdfast.aio.lease import Lease, LossEvent, cancel_on_loss, work_outcome
from holdfast.clock import Seconds
from holdfast.core.lease import leader
from holdfast.core.lease.lock import LockBase, awaitable, refuse_plain
from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType

    from holdfast.core.client import Client
    from holdfast.core.lease.leader import LeaderStatus

R = TypeVar("R")


class Term(Lease):
    """The lease of a leader."""

    def __init__(self, candidacy: leader.Candidacy, *fields: Any) -> None:
        self._candidacy = candidacy
        super().__init__(*fields)

    @property
    def over(self) -> LossEvent:
        """Set when the work should end: the leader resigned, handed over, or lost its lease."""
        return LossEvent(self, lambda: self._candidacy.is_over(self) or self.is_lost())


class Leader(LockBase):
    """One candidate in one election. `async with leader as term:` waits to lead, then leads until the block ends."""

    def __init__(self, client: Client, name: str, *, label: str, **settings: Any) -> None:
        super().__init__(client, name, reentrant=False, label=label, template=False, **settings)
        self._candidacy = leader.Candidacy(client, self.name, label)

    def __repr__(self) -> str:
        return leader.shown(self._candidacy)

    @property
    def candidate(self) -> str:
        """The name of this candidate."""
        return self._candidacy.candidate

    async def run(self, work: Callable[[Term], Awaitable[R]]) -> R:
        """Wait to lead, run `work(term)` while leading, and return its result.

        `work`: a coroutine function that takes the `Term`; it should stop when `term.over` is set.
        """
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
        """Return who leads now, or `None`."""
        return await leader.current(self._candidacy)

    async def candidates(self) -> list[str]:
        """Return the names of the candidates that wait to lead, in order."""
        return await leader.candidates(self._candidacy)

    async def observe(self, interval: Seconds = 1.0) -> AsyncIterator[LeaderStatus | None]:
        """Yield who leads, now and after every change, for ever.

        `interval`: seconds between two checks. A check that fails loses nothing: the next one sees the change.
        """
        watch = leader.LeaderWatch(self._candidacy, interval)
        while True:
            yield await watch.change()

    def resign(self) -> None:
        """Ask the running term to end, without I/O; the next candidate leads when its work has finished."""
        self._candidacy.step_down()

    async def hand_over(self, to: str) -> None:
        """Resign in favour of a waiting candidate; raise `NotFound` if it does not wait.

        `to`: the name of that candidate.
        """
        await leader.hand_over(self._candidacy, to)

    async def __aenter__(self) -> Term:
        term = Term(self._candidacy, *self._fields())
        try:
            self._candidacy.enter(term)
            await term.acquire_steps(self._timeout_ns)
            self._candidacy.begin(term)
            cancel_on_loss(self._on_loss, term)
            term.delivered = True
            return term  # noqa: TRY300 - an interrupt may arrive even here
        except BaseException:
            self._candidacy.forget(term)
            term.undo()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        term = self._candidacy.term
        try:
            await leader.end_term(self._candidacy, error if term is None else work_outcome(term, error))
        finally:
            leader.ended(self._candidacy, term)
        return False
