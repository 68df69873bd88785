"""Leader election: a lock whose holder can be asked to stop."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdfast.blocking.lease import Lease, LossEvent
from holdfast.clock import Seconds
from holdfast.core.lease import leader
from holdfast.core.lease.lock import LockBase, refuse_coroutine, refuse_unfinished
from holdfast.core.step import run
from holdfast.errors import LeaseLost
from holdfast.host import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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
    """One candidate in one election. `with leader as term:` waits to lead, then leads until the block ends."""

    def __init__(self, client: Client, name: str, *, label: str, **settings: Any) -> None:
        super().__init__(client, name, reentrant=False, label=label, template=False, **settings)
        self._candidacy = leader.Candidacy(client, self.name, label)

    def __repr__(self) -> str:
        return leader.shown(self._candidacy)

    @property
    def candidate(self) -> str:
        """The name of this candidate."""
        return self._candidacy.candidate

    def run(self, work: Callable[[Term], R]) -> R:
        """Wait to lead, run `work(term)` while leading, and return its result.

        `work`: a function that takes the `Term`; it should stop when `term.over` is set.
        """
        refuse_coroutine(work)
        done: list[R] = []
        try:
            with self as term:
                result = work(term)
                refuse_unfinished(work, result)
                done.append(result)
        except LeaseLost as lost:
            lost.result = lost.result if not done else done[0]
            raise
        return done[0]

    def keep(self, work: Callable[[Term], object]) -> None:
        """Lead again and again until the client is closed: after a loss, after an outage, and when `work` returns.

        `work`: a function that takes the `Term`; it should stop when `term.over` is set. An error that it raises ends
        the loop and reaches the caller, except `LeaseLost` and `Fenced`, which follow from a loss.
        """
        refuse_coroutine(work)
        kept = leader.KeptLeadership(self._candidacy, self._ttl_ms)

        def recorded(term: Term) -> None:
            try:
                refuse_unfinished(work, work(term))
            except BaseException as error:
                kept.failed = error
                raise

        async def lead() -> None:
            self.run(recorded)

        run(kept.steps(lead))

    def current(self) -> LeaderStatus | None:
        """Return who leads now, or `None`."""
        return run(leader.current(self._candidacy))

    def candidates(self) -> list[str]:
        """Return the names of the candidates that wait to lead, in order."""
        return run(leader.candidates(self._candidacy))

    def observe(self, interval: Seconds = 1.0) -> Iterator[LeaderStatus | None]:
        """Yield who leads, now and after every change, for ever.

        `interval`: seconds between two checks. A check that fails loses nothing: the next one sees the change.
        """
        watch = leader.LeaderWatch(self._candidacy, interval)
        while True:
            yield run(watch.change())

    def resign(self) -> None:
        """Ask the running term to end, without I/O; a candidate that does not lead does nothing.

        The next candidate leads when the work has finished.
        """
        self._candidacy.step_down()

    def stop(self) -> None:
        """Give up the candidacy, without I/O: end the running term, and withdraw a waiting acquire."""
        self._candidacy.stop()

    def hand_over(self, to: str) -> None:
        """Resign in favour of a waiting candidate; raise `NotFound` if it does not wait.

        `to`: the name of that candidate.
        """
        run(leader.hand_over(self._candidacy, to))

    def __enter__(self) -> Term:
        term = Term(self._candidacy, *self._fields())
        term.caller = threading.get_ident()
        try:
            self._candidacy.enter(term)
            run(term.acquire_steps(self._timeout_ns))
            self._candidacy.begin(term)
            term.in_block = True
            term.delivered = True
            return term  # noqa: TRY300 - an interrupt may arrive even here
        except BaseException:
            self._candidacy.forget(term)
            term.undo()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        term = self._candidacy.term
        try:
            run(leader.end_term(self._candidacy, error))
        finally:
            leader.ended(self._candidacy, term)
        return False


class Leading:
    """Keeps a candidate in the election during a block, on a thread: `with hf.leading(name, work) as leader:`."""

    def __init__(self, candidate: Leader, work: Callable[[Term], object]) -> None:
        refuse_coroutine(work)
        self._leader, self._work = candidate, work
        self._outcome: Future[None] = Future()

    def __enter__(self) -> Leader:
        self._outcome.add_done_callback(leader.report_end)
        start_thread(threading.Thread(target=self._keep, name="holdfast-leading", daemon=True), "holdfast")
        return self._leader

    def _keep(self) -> None:
        try:
            self._leader.keep(self._work)
        except BaseException as error:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """End the term, wait for the work, and raise the error that ended it early."""
        self._leader.stop()
        self._outcome.result()
        return False
