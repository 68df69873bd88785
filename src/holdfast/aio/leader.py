"""Leader election: a lock whose holder can be asked to stop."""

from __future__ import annotations

import asyncio
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
        """Set when the work should end: the leader resigned, handed over, or lost its lease, or the client closes."""
        return LossEvent(self, lambda: self._candidacy.is_over(self) or self.is_lost())

    def client_closing(self) -> None:
        """Wake the work that waits for `over`, which is set now."""
        self.wake()


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

    async def keep(self, work: Callable[[Term], Awaitable[object]]) -> None:
        """Lead again and again until the client is closed: after a loss, after an outage, and when `work` returns.

        `work`: a coroutine function that takes the `Term`; it should stop when `term.over` is set. An error that it
        raises ends the loop and reaches the caller, except `LeaseLost` and `Fenced`, which follow from a loss.
        """
        refuse_plain(work)
        kept = leader.KeptLeadership(self._candidacy, self._ttl_ms)

        async def recorded(term: Term) -> None:
            try:
                await awaitable(work, work(term))
            except BaseException as error:
                kept.failed = error
                raise

        await kept.steps(lambda: self.run(recorded))

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
        """Ask the running term to end, without I/O; a candidate that does not lead does nothing.

        The next candidate leads when the work has finished.
        """
        self._candidacy.step_down()

    def stop(self) -> None:
        """Give up the candidacy, without I/O: end the running term, and withdraw a waiting acquire."""
        self._candidacy.stop()

    async def hand_over(self, to: str) -> None:
        """Resign in favour of a waiting candidate; raise `NotFound` if it does not wait.

        `to`: the name of that candidate.
        """
        await leader.hand_over(self._candidacy, to)

    async def __aenter__(self) -> Term:
        term = Term(self._candidacy, *self._fields())
        term.caller = id(asyncio.current_task())
        try:
            self._candidacy.enter(term)
            await term.acquire_steps(self._timeout_ns)
            self._candidacy.begin(term)
            term.in_block = True
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


class Leading:
    """Keeps a candidate in the election during a block: `async with hf.leading(name, work) as leader:`."""

    def __init__(self, candidate: Leader, work: Callable[[Term], Awaitable[object]]) -> None:
        refuse_plain(work)
        self._leader, self._work = candidate, work
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Leader:
        self._task = asyncio.create_task(self._leader.keep(self._work))
        self._task.add_done_callback(leader.report_end)
        return self._leader

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """End the term, wait for the work, and raise the error that ended it early."""
        self._leader.stop()
        if self._task is not None:
            await self._task
        return False
