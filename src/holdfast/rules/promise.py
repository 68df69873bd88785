"""What may be relied on, as a value: how it is told, compared, and measured against what somebody requires.

Levels and scopes are ordered: each holds all that the ones before it hold. Whoever requires one is content with any
that comes after it.
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
# Where to find what no setting of the engine at hand gives.
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
    """Something an engine cannot promise, and the test that shows it."""

    sentence: str
    shown_by: str


class Promise(NamedTuple):
    """What may be relied on, as a value: print it, compare it, refuse to start without it.

    `reasons` say why it is so, `unseen` what could not be looked at, `changes` what would make it stronger. `facts` are
    what was seen, in pairs; `None` is what was not.
    """

    engine: str
    scope: str
    level: str
    fifo: bool
    fences_grow: bool
    reasons: tuple[str, ...]
    limits: tuple[Caveat, ...]
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
            *(f"  except       {limit.sentence}" for limit in self.limits),
            *(f"  to change    {change}" for change in self.changes),
        ]
        return "\n".join(lines)

    def advice(self, missing: Iterable[str]) -> tuple[str, ...]:
        """What to do for words that it does not hold: settings where they help, else another engine."""
        told: list[str] = []
        for word in missing:
            helps = bool(self.changes) and word not in (*SCOPES, FAILOVER)
            told += self.changes if helps else (_ELSEWHERE[word],)
        return tuple(dict.fromkeys(told))

    def as_dict(self) -> dict[str, Any]:
        """The same for programs: only what JSON knows."""
        lists = {name: list(getattr(self, name)) for name in ("reasons", "unseen", "changes")}
        limits = [limit._asdict() for limit in self.limits]
        return self._asdict() | lists | {"limits": limits, "facts": dict(self.facts)}


def weaker(one: str, other: str) -> str:
    """The weaker of two levels."""
    return min(one, other, key=LEVELS.index)


def required(words: str | Iterable[str]) -> tuple[str, ...]:
    """What somebody requires, checked: a word of the promise, or several."""
    wanted = (words,) if isinstance(words, str) or not isinstance(words, Iterable) else tuple(words)
    for word in wanted:
        if word not in WORDS:
            raise InvalidConfig("require", word, f"it must be one or several of: {', '.join(WORDS)}")
    return wanted


def missing(promise: Promise, wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of the required words that the promise does not hold."""
    return tuple(word for word in wanted if not _holds(promise, word))


def _holds(promise: Promise, word: str) -> bool:
    if word in LEVELS:
        return LEVELS.index(promise.level) >= LEVELS.index(word)
    if word in SCOPES:
        return SCOPES.index(promise.scope) >= SCOPES.index(word)
    return promise.fences_grow if word == FENCES_GROW else promise.fifo


def difference(before: Promise, now: Promise) -> str:
    """How a promise has changed, in a sentence that begins with weaker, stronger or changed; empty if it has not."""
    was, seen = dict(before.facts), dict(now.facts)
    told = [
        f"{what.replace('_', ' ')} {_said(was.get(what))} -> {_said(seen.get(what))}"
        for what in {**was, **seen}
        if was.get(what) != seen.get(what)
    ]
    if before.fences_grow != now.fences_grow:
        told.insert(0, "fences grow" if now.fences_grow else "fences may go back")
    if before.level != now.level:
        told.insert(0, f"{before.level} -> {now.level}")
    if not told:
        return ""
    ranks = [(LEVELS.index(promise.level), promise.fences_grow) for promise in (before, now)]
    way = "weaker" if ranks[1] < ranks[0] else "stronger" if ranks[1] > ranks[0] else "changed"
    return f"{way}: {', '.join(told)}"


def _said(fact: Any) -> str:
    return _NOT_SEEN if fact is None else str(fact)
