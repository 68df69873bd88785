"""Leadership: a lock whose holder can be asked to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from holdfast.blocking.lease import Lease, LossEvent
from holdfast.blocking.lock import Lock
from holdfast.clock import Seconds
from holdfast.core.lease import acquire as lifecycle
from holdfast.core.lease import leader
from holdfast.core.lease.lock import refuse_coroutine, refuse_unfinished
from holdfast.core.step import run
from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from holdfast.core.lease.leader import LeaderStatus

R = TypeVar("R")


class Term(Lease):
    """The lease of a leader."""

    _candidacy: leader.Candidacy

    @property
    def over(self) -> LossEvent:
        """Set when the work should end: the term was resigned, handed over, or lost."""
        return LossEvent(self, lambda: self._candidacy.is_over(self) or self._is_lost())


class Leader:
    """One candidate in one election. `with leader as term:` waits to lead, then leads until the block ends."""

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

    def run(self, work: Callable[[Term], R]) -> R:
        """Wait to lead, run `work(term)` while leading, and give its result."""
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

    def current(self) -> LeaderStatus | None:
        """Who leads now, or `None`."""
        return run(leader.current(self._candidacy))

    def candidates(self) -> list[str]:
        """Who waits to lead, in order."""
        return run(leader.candidates(self._candidacy))

    def observe(self, interval: Seconds = 1.0) -> Iterator[LeaderStatus | None]:
        """Who leads, now and after every change, for ever. Looks every `interval`; a missed look loses nothing."""
        watch = leader.LeaderWatch(self._candidacy, interval)
        while True:
            yield run(watch.change())

    def resign(self) -> None:
        """Tell the running term that it is over; the next candidate leads when its work has settled."""
        self._candidacy.step_down()

    def hand_over(self, to: str) -> None:
        """Resign in favour of a waiting candidate; `NotFound` if it does not wait."""
        run(leader.hand_over(self._candidacy, to))

    def __enter__(self) -> Term:
        term = Term(*self._lock._fields())  # the leader is a shape around its lock
        term._candidacy = self._candidacy
        try:
            self._candidacy.enter(term)
            run(lifecycle.acquire(term, self._lock._timeout_ns))
            self._candidacy.begin(term)
            term._owned = True
            return term  # noqa: TRY300 - as above
        except BaseException:
            self._candidacy.forget(term)
            lifecycle.undo(term)
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
