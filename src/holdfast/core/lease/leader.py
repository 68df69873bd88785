"""Leadership: a lock that is held for long, can be looked at, and can be handed to a named candidate.

Candidates wait in the lock's own queue. A leader that steps down is told first (`term.over`), and the next one starts
only when the old one's work has settled and its lease was released; a leader that is lost stops trusting its lease
before the engine gives it away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import Seconds, timeout_ns
from holdfast.core.inspection import standing
from holdfast.core.lease.acquire import end, leave
from holdfast.errors import PASSING, InvalidConfig, NotFound, NotOwner, Unavailable
from holdfast.names import LABEL_MAX, Holder, is_unicode
from holdfast.observer import log

if TYPE_CHECKING:
    from holdfast.commands import LeaseParty
    from holdfast.core.client import Client
    from holdfast.core.lease.lease import LeaseBase


class LeaderStatus(NamedTuple):
    """Who leads: the candidate's name, who that is, under which fence, and for how long already."""

    candidate: str
    holder: Holder
    fence: int
    seconds: float


class Candidacy:
    """One candidate's standing in one election: its term, if it has one, and who is to be next."""

    def __init__(self, client: Client, name: str, candidate: str) -> None:
        self.client = client
        self.name = name
        self.candidate = candidate
        self.entered: LeaseBase | None = None
        self.term: LeaseBase | None = None
        self.over = False
        self.heir = ""

    def enter(self, term: LeaseBase) -> None:
        """One term at a time: a second one would be ended by the first one's block."""
        with self.client.guard:
            if self.entered is not None:
                raise RuntimeError(f"candidate {self.candidate!r} is in use: make a leader of its own for each block")
            self.entered = term

    def begin(self, term: LeaseBase) -> None:
        self.term, self.over, self.heir = term, False, ""

    def forget(self, term: LeaseBase) -> None:
        if self.term is term:
            self.term = None
        if self.entered is term:
            self.entered = None

    def is_over(self, term: LeaseBase) -> bool:
        return self.over or self.term is not term

    def step_down(self, heir: str = "") -> None:
        """Tell the running term that it is over; it ends when its work has settled."""
        if self.term is None:
            raise NotOwner(self.name, f"{self.candidate} does not lead")
        self.heir, self.over = heir, True
        self.term._wake()  # the core knows leases from within


def shown(candidacy: Candidacy) -> str:
    """What a leader looks like where it is printed."""
    leads = ", leading" if candidacy.term is not None else ""
    return f"<leader {candidacy.name!r}, candidate {candidacy.candidate!r}{leads}, on {candidacy.client.url}>"


def candidate_name(client: Client, candidate: str | None) -> str:
    """What a candidate is called: the name it was given, else its process's label, else where it runs."""
    if candidate is None:
        return client.holder.label or f"{client.holder.host}:{client.holder.pid}"
    if not isinstance(candidate, str) or not 0 < len(candidate) <= LABEL_MAX or not is_unicode(candidate):
        rule = f"it must be text of 1 to {LABEL_MAX} characters, without lone surrogates"
        raise InvalidConfig("candidate", candidate, rule)
    return candidate


class LeaderWatch:
    """Tells who leads, once at the beginning and then after every change."""

    def __init__(self, candidacy: Candidacy, interval: Seconds) -> None:
        interval_ns = timeout_ns(interval, setting="interval")
        if not interval_ns:
            raise InvalidConfig("interval", interval, "it must be more than zero seconds")
        self._interval_ns = interval_ns
        self._candidacy = candidacy
        self._seen: tuple[int | None] | None = None

    async def change(self) -> LeaderStatus | None:
        """The next leader that is not the last one told."""
        client = self._candidacy.client
        while True:
            if self._seen is not None:
                await client.transport.waker().wait(client.clock.now_ns() + self._interval_ns)
            try:
                now = await current(self._candidacy)
            except Unavailable as error:
                # Whoever watches for ever watches through an outage too; only the first look tells of it at once.
                if self._seen is None or error.reason not in PASSING:
                    raise
                client.emit("unavailable", self._candidacy.name, detail=str(error))
                continue
            seen = (None if now is None else now.fence,)
            if seen != self._seen:
                self._seen = seen
                return now


async def current(candidacy: Candidacy) -> LeaderStatus | None:
    """The leader, or `None`. Somebody to whom it is only offered does not lead yet."""
    now = await standing(candidacy.client, candidacy.name)
    if now.holder is None or now.offered:
        return None
    holder = Holder.unpacked(now.holder.holder)
    return LeaderStatus(holder.label, holder, now.holder.fence, now.holder.since_ms / 1000)


async def candidates(candidacy: Candidacy) -> list[str]:
    """Who waits to lead, in order."""
    now = await standing(candidacy.client, candidacy.name)
    return [_label(seat) for seat in now.waiters]


async def hand_over(candidacy: Candidacy, to: str) -> None:
    """Step down in favour of a candidate that waits; `NotFound` if it does not."""
    if candidacy.term is None:
        raise NotOwner(candidacy.name, f"{candidacy.candidate} does not lead")
    if to not in await candidates(candidacy):
        raise NotFound(candidacy.name, f"waiting candidate {to!r}")
    candidacy.step_down(to)


async def end_term(candidacy: Candidacy, error: BaseException | None) -> None:
    """Release the leadership, to the named heir if it still waits."""
    term, candidacy.term, heir = candidacy.term, None, ""
    if term is None:
        raise RuntimeError(f"the term of {candidacy.candidate!r} has ended before")
    if candidacy.heir:
        heir = await _token_of(candidacy, candidacy.heir)
    await leave(term, error, heir)


def ended(candidacy: Candidacy, term: LeaseBase | None) -> None:
    """The term is over, however its end went: what was interrupted is finished."""
    if term is not None:
        candidacy.forget(term)
        end(term)


async def _token_of(candidacy: Candidacy, heir: str) -> str:
    try:
        now = await standing(candidacy.client, candidacy.name)
    except Unavailable as trouble:
        log.warning("the heir %r of %r cannot be looked up: %s", heir, candidacy.name, trouble)
        return ""
    return next((seat.token for seat in now.waiters if _label(seat) == heir), "")


def _label(seat: LeaseParty) -> str:
    return Holder.unpacked(seat.holder).label
