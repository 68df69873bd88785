"""The promise of an engine as a value: print it, compare two, and check it against the words that a program requires.

Levels and scopes are ordered: each includes all earlier ones. A program that requires a level accepts every later one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.errors import InvalidConfig

EFFICIENCY, CLIENTS, RESTART, FAILOVER = LEVELS = (
    "efficiency only",
    "survives client faults",
    "survives restart",
    "survives failover",
)
SCOPES = ("process", "host", "hosts")
FENCES_GROW = "fences grow"
FIFO = "fifo"
WORDS = (*LEVELS, *SCOPES, FENCES_GROW, FIFO)

_AMONG = {
    "process": "the threads and tasks of one process",
    "host": "the processes of one host",
    "hosts": "the processes of many hosts",
}
# Which engine to use instead, if no setting of the present one helps.
_ELSEWHERE = {
    "host": "use sqlite:// for the processes of one host, redis:// for those of many",
    "hosts": "use redis:// or valkey://, or file:// in a directory that the hosts share",
    CLIENTS: "use sqlite://, or one redis:// server that evicts nothing",
    RESTART: "use sqlite://, or one redis:// server with appendonly yes and appendfsync always",
    FAILOVER: 'no engine promises this by itself: require less, and take each lock with confirm="replicas" on Redis, '
    "which outlives a failover (docs/promise.md#confirm)",
    FENCES_GROW: "use sqlite://, or one redis:// server without replicas",
    FIFO: "use sqlite:// or redis://",
}
_NOT_SEEN = "not seen"


class Caveat(NamedTuple):
    """One exception to a promise, and the test that shows it."""

    sentence: str
    shown_by: str


# Of an engine that keeps its leases in files.
MOVABLE = Caveat(
    "all users of this host can write to the directory, and it has no sticky bit: each of them can move the leases "
    "away, and the next client then starts without them; run chmod o-w or chmod +t on the directory",
    "tests/engines/test_squatting.py::test_a_directory_whose_files_all_users_can_move_gets_a_caveat",
)


class Promise(NamedTuple):
    """The guarantees that a program may rely on: print it, compare it, or refuse to start without it.

    `reasons` explain the level. `caveats` are its exceptions. `unseen`: the facts that could not be checked. `changes`:
    the changes that would make the promise stronger. `facts`: pairs of a setting and its value; `None` if unreadable.
    """

    engine: str
    scope: str
    level: str
    fifo: bool
    fences_grow: bool
    reasons: tuple[str, ...]
    caveats: tuple[Caveat, ...]
    unseen: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    facts: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.engine}: one holder among {_AMONG.get(self.scope, self.scope)}",
            f"  level        {self.level}",
            f"  waiting      {'first in, first out' if self.fifo else 'in no promised order'}",
            f"  fences       {'only grow' if self.fences_grow else 'may repeat or go back'}",
            *(f"  because      {reason}" for reason in self.reasons),
            *(f"  not seen     {what}" for what in self.unseen),
            *(f"  except       {caveat.sentence}" for caveat in self.caveats),
            *(f"  to change    {change}" for change in self.changes),
        ]
        return "\n".join(lines)

    def advice(self, missing: Iterable[str]) -> tuple[str, ...]:
        """Return what to do about the missing words: change settings if that helps, else use another engine."""
        advice: list[str] = []
        for word in missing:
            helps = bool(self.changes) and word not in (*SCOPES, FAILOVER)
            advice += self.changes if helps else (_ELSEWHERE[word],)
        return tuple(dict.fromkeys(advice))

    def as_dict(self) -> dict[str, Any]:
        """Return the promise as a dictionary of plain values, ready for JSON."""
        lists = {name: list(getattr(self, name)) for name in ("reasons", "unseen", "changes")}
        caveats = [caveat._asdict() for caveat in self.caveats]
        return self._asdict() | lists | {"caveats": caveats, "facts": dict(self.facts)}


def weaker(first: str, second: str) -> str:
    """Return the weaker of two levels."""
    return min(first, second, key=LEVELS.index)


def required(words: str | Iterable[str]) -> tuple[str, ...]:
    """Return the checked words that a program requires: one word of the promise, or several."""
    wanted = (words,) if isinstance(words, str) or not isinstance(words, Iterable) else tuple(words)
    for word in wanted:
        if word not in WORDS:
            raise InvalidConfig("require", word, f"it must be one or several of: {', '.join(WORDS)}")
    return wanted


def missing(promise: Promise, wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the required words that the promise does not include."""
    return tuple(word for word in wanted if not _includes(promise, word))


def _includes(promise: Promise, word: str) -> bool:
    if word in LEVELS:
        return LEVELS.index(promise.level) >= LEVELS.index(word)
    if word in SCOPES:
        return SCOPES.index(promise.scope) >= SCOPES.index(word)
    return promise.fences_grow if word == FENCES_GROW else promise.fifo


def difference(before: Promise, now: Promise) -> str:
    """Return how a promise has changed, as text that begins with weaker, stronger or changed; empty if it has not."""
    old, new = dict(before.facts), dict(now.facts)
    changes = [
        f"{fact.replace('_', ' ')} {_fact_shown(old.get(fact))} -> {_fact_shown(new.get(fact))}"
        for fact in {**old, **new}
        if old.get(fact) != new.get(fact)
    ]
    if before.fences_grow != now.fences_grow:
        changes.insert(0, "fences grow" if now.fences_grow else "fences may go back")
    if before.level != now.level:
        changes.insert(0, f"{before.level} -> {now.level}")
    if not changes:
        return ""
    ranks = [(LEVELS.index(promise.level), promise.fences_grow) for promise in (before, now)]
    direction = "weaker" if ranks[1] < ranks[0] else "stronger" if ranks[1] > ranks[0] else "changed"
    return f"{direction}: {', '.join(changes)}"


def _fact_shown(fact: Any) -> str:
    return _NOT_SEEN if fact is None else str(fact)
