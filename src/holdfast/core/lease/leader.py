"""Leader election: a lock that its leader holds for a long time, and may hand to a named candidate.

Any process can look up the leader. Candidates wait in the lock's own waiting line. A request to step down first reaches
the leader's work (`term.over`). The next leader starts only when that work has finished and the lease was released. A
leader whose lease is lost stops trusting the lease before the engine gives it to another candidate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.clock import NS_PER_MS, Seconds, timeout_ns
from holdfast.core.inspection import lease_info
from holdfast.core.resend import ResendPolicy
from holdfast.errors import (
    CANDIDATE,
    PASSING,
    Closed,
    Fenced,
    InvalidConfig,
    LeaseLost,
    NotAcquired,
    NotFound,
    NotOwner,
    Unavailable,
)
from holdfast.names import LABEL_MAX, Holder, is_unicode
from holdfast.observer import log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.commands import LeaseParty
    from holdfast.core.client import Client
    from holdfast.core.lease.lease import LeaseBase


# The pause between two terms that ended early: it doubles from term to term.
KEEP = ResendPolicy(100 * NS_PER_MS, 5000 * NS_PER_MS)
KEEP_DOUBLED_MAX = 6


class LeaderStatus(NamedTuple):
    """The leader: the candidate's name, its process, its fence, and for how many seconds it has led."""

    candidate: str
    holder: Holder
    fence: int
    seconds: float


class Candidacy:
    """One candidate in one election: its term, if it leads, and the candidate that is to be next."""

    def __init__(self, client: Client, name: str, candidate: str) -> None:
        self.client = client
        self.name = name
        self.candidate = candidate
        self.entered: LeaseBase | None = None
        self.term: LeaseBase | None = None
        self.over = False
        self.successor = ""
        self.stopped = False  # true once `leading` is left: no further term

    def enter(self, term: LeaseBase) -> None:
        """Enter one block at a time: the end of the first block would end the term of a second one."""
        with self.client.guard:
            if self.entered is not None:
                raise RuntimeError(f"candidate {self.candidate!r} is in use: make one leader object for each block")
            if self.stopped:
                raise Closed(CANDIDATE)
            self.entered = term

    def begin(self, term: LeaseBase) -> None:
        """Start to lead."""
        self.term, self.over, self.successor = term, False, ""

    def forget(self, term: LeaseBase) -> None:
        """Forget a term that has ended."""
        if self.term is term:
            self.term = None
        if self.entered is term:
            self.entered = None

    def is_over(self, term: LeaseBase) -> bool:
        """Return whether the work of this term should end."""
        return self.over or self.stopped or self.term is not term or not self.client.is_open

    def step_down(self, successor: str = "") -> None:
        """Ask the running term to end; it ends when its work has finished. Without a term, do nothing."""
        term = self.term
        if term is not None:
            self.successor, self.over = successor, True
            term.wake()

    def stop(self) -> None:
        """Give up the candidacy: end the running term, and withdraw a waiting acquire."""
        with self.client.guard:  # `enter` either sees that the candidacy has ended, or leaves its term to withdraw
            self.stopped = True
            entered = self.entered
        self.step_down()
        if entered is not None:
            entered.withdrawn = True
            self.client.transport.wake_all()  # a thread may wait in a command that only this call interrupts
        self.client.wake_pauses()


class KeptLeadership:
    """The loop of `leader.keep`: lead again after each term, with a pause after a short or a failed one."""

    def __init__(self, candidacy: Candidacy, ttl_ms: int) -> None:
        self._candidacy = candidacy
        self._long_ns = ttl_ms * NS_PER_MS
        self.failed: BaseException | None = None  # the error that the work raised

    async def steps(self, lead: Callable[[], Awaitable[object]]) -> None:
        """Call `lead` for each term until the client is closed. Raise an error that the work raised."""
        candidacy, client = self._candidacy, self._candidacy.client
        short_terms = 0
        while client.is_open and not candidacy.stopped:
            began_ns = client.clock.now_ns()
            trouble, self.failed = False, None
            try:
                await lead()
            except (Closed, LeaseLost, NotAcquired, Unavailable) as error:
                if self._raised_by_work():
                    raise
                trouble = isinstance(error, LeaseLost | Unavailable)
                if trouble:
                    log.warning("the term of %r in %r ended: %s", candidacy.candidate, candidacy.name, error)
            now_ns = client.clock.now_ns()
            short_terms = 0 if now_ns - began_ns >= self._long_ns else short_terms + 1
            if trouble or short_terms > 1:  # also after the timeout of the leader object
                await client.pause(now_ns + KEEP.pause_ns(min(short_terms, KEEP_DOUBLED_MAX), now_ns))

    def _raised_by_work(self) -> bool:
        """Return whether the work failed with an error of its own.

        `LeaseLost` and `Fenced` follow from a loss, and `Closed` from the end of the client.
        """
        if isinstance(self.failed, Closed):
            return self._candidacy.client.is_open
        return self.failed is not None and not isinstance(self.failed, LeaseLost | Fenced)


def shown(candidacy: Candidacy) -> str:
    """Return the repr of a leader."""
    leads = ", leading" if candidacy.term is not None else ""
    return f"<leader {candidacy.name!r}, candidate {candidacy.candidate!r}{leads}, on {candidacy.client.url}>"


def candidate_name(client: Client, candidate: str | None) -> str:
    """Return the name of a candidate: the given one, else the label of its process, else host and pid."""
    if candidate is None:
        return client.holder.label or f"{client.holder.host}:{client.holder.pid}"
    if not isinstance(candidate, str) or not 0 < len(candidate) <= LABEL_MAX or not is_unicode(candidate):
        rule = f"it must be text of 1 to {LABEL_MAX} characters, without unpaired surrogates"
        raise InvalidConfig("candidate", candidate, rule)
    return candidate


class LeaderWatch:
    """Reports the present leader first, and then every change."""

    def __init__(self, candidacy: Candidacy, interval: Seconds) -> None:
        interval_ns = timeout_ns(interval, setting="interval")
        if not interval_ns:
            raise InvalidConfig("interval", interval, "it must be more than zero seconds")
        self._interval_ns = interval_ns
        self._candidacy = candidacy
        self._seen: tuple[int | None] | None = None

    async def change(self) -> LeaderStatus | None:
        """Return the next leader that differs from the last one returned."""
        client = self._candidacy.client
        while True:
            if self._seen is not None:
                await client.transport.waker().wait(client.clock.now_ns() + self._interval_ns)
            try:
                status = await current(self._candidacy)
            except Unavailable as error:
                # A watch continues through an outage. Only the first check raises at once.
                if self._seen is None or error.reason not in PASSING:
                    raise
                client.emit("unavailable", self._candidacy.name, detail=str(error))
                continue
            seen = (None if status is None else status.fence,)
            if seen != self._seen:
                self._seen = seen
                return status


def report_end(outcome: Any) -> None:
    """Log an error that ended `leading`, at once: its block may end much later."""
    if not outcome.cancelled() and (error := outcome.exception()) is not None:
        log.error("the work of a leader failed; this candidate does not lead again: %r", error)


async def current(candidacy: Candidacy) -> LeaderStatus | None:
    """Return the leader, or `None`. A candidate with an offer that it has not confirmed does not lead yet."""
    info = await lease_info(candidacy.client, candidacy.name)
    if info.holder is None or info.offered:
        return None
    holder = Holder.unpacked(info.holder.holder)
    return LeaderStatus(holder.label, holder, info.holder.fence, info.holder.since_ms / 1000)


async def candidates(candidacy: Candidacy) -> list[str]:
    """Return the names of the candidates that wait to lead, in order."""
    info = await lease_info(candidacy.client, candidacy.name)
    return [_label(waiter) for waiter in info.waiters]


async def hand_over(candidacy: Candidacy, to: str) -> None:
    """Step down in favour of a waiting candidate; raise `NotFound` if it does not wait."""
    candidate_name(candidacy.client, to)
    if candidacy.term is None:
        raise NotOwner(candidacy.name, f"{candidacy.candidate} does not lead")
    if to not in await candidates(candidacy):
        raise NotFound(candidacy.name, f"waiting candidate {to!r}")
    candidacy.step_down(to)


async def end_term(candidacy: Candidacy, error: BaseException | None) -> None:
    """Release the leadership, to the named successor if it still waits."""
    term, candidacy.term, token = candidacy.term, None, ""
    if term is None:
        raise RuntimeError(f"the term of {candidacy.candidate!r} has already ended")
    if candidacy.successor:
        token = await _token_of(candidacy, candidacy.successor)
    await term.leave_steps(error, token)


def ended(candidacy: Candidacy, term: LeaseBase | None) -> None:
    """Clean up after a term, however it ended: the keeper finishes an interrupted release."""
    if term is not None:
        candidacy.forget(term)
        term.end()


async def _token_of(candidacy: Candidacy, successor: str) -> str:
    try:
        info = await lease_info(candidacy.client, candidacy.name)
    except Unavailable as error:
        log.warning("the successor %r of %r cannot be looked up: %s", successor, candidacy.name, error)
        return ""
    return next((waiter.token for waiter in info.waiters if _label(waiter) == successor), "")


def _label(party: LeaseParty) -> str:
    return Holder.unpacked(party.holder).label
