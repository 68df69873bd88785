"""Replies to answers: what a script says, in the words of the law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.commands import (
    Answer,
    AtCapacity,
    Break,
    BreakItem,
    Busy,
    CoolItem,
    Done,
    EntryPage,
    Extend,
    Finish,
    Granted,
    HandedOff,
    ItemSnapshot,
    ItemsStillLent,
    MailboxMessages,
    Marked,
    NotHeld,
    PoolChanged,
    PoolSnapshot,
    Refused,
    Release,
    Released,
    ReleaseEntry,
    Renew,
    Renewed,
    Return,
    Seat,
    Standing,
    Undo,
    UndoBorrow,
    UnknownItems,
)
from holdfast.engines.redis import counters as tallies
from holdfast.engines.redis import queue as queues

if TYPE_CHECKING:
    from collections.abc import Callable


def answered(kind: type, reply: Any) -> Answer:
    """What a script's reply to that kind of command means."""
    if type(reply) is str:
        return Granted(int(reply))
    if type(reply) is int:
        return _YES[kind]
    return _ANSWERS[reply[0]](reply)


def time_of(reply: Any) -> int | None:
    """The server's time in the reply to a renewal, in microseconds; no error reply has one."""
    if type(reply) is list:
        return int(reply[3])
    return reply if type(reply) is int else None


def _letters(reply: list[Any]) -> MailboxMessages:
    parts = (each.partition("\n") for each in reply[1:])
    return MailboxMessages(tuple((letter, text) for letter, _, text in parts))


def _listing(reply: list[Any]) -> EntryPage:
    _, last, *rest = reply
    entries = []
    for at in range(0, len(rest), 6):
        entry, token, holder, fence, since_ms, remaining_ms = rest[at : at + 6]
        entries.append((entry, Seat(holder, token, int(fence), since_ms, remaining_ms)))
    return EntryPage(tuple(entries), last)


def _standing(reply: list[Any]) -> Standing:
    _, fence, offered, token, holder, held, since_ms, remaining_ms, *rest = reply
    holder = Seat(holder, token, int(held), since_ms, remaining_ms) if token else None
    waiters = tuple(Seat(rest[at + 1], rest[at], 0, rest[at + 2], 0) for at in range(0, len(rest), 3))
    return Standing(int(fence), holder, bool(offered), waiters)


def _tally(reply: list[Any]) -> PoolSnapshot:
    _, fence, permits, size, lent, cooling, free, waiting, trouble, items, waiters = reply
    seen = tuple(
        ItemSnapshot(items[at], items[at + 1], bool(items[at + 2]), int(items[at + 3]), *items[at + 4 : at + 8])
        for at in range(0, len(items), 8)
    )
    seats = tuple(Seat(waiters[at + 1], waiters[at], 0, waiters[at + 2], 0) for at in range(0, len(waiters), 3))
    return PoolSnapshot(int(fence), permits, size, lent, cooling, free, waiting, seen, seats, trouble)


# What the plain answer to a command says.
_YES: dict[type, Answer] = {
    Renew: Renewed(),
    Release: Released(),
    Finish: Released(),
    ReleaseEntry: Released(),
    Break: Released(),
    Undo: Done(),
    Extend: Renewed(),
    Return: Released(),
    UndoBorrow: Done(),
    BreakItem: Released(),
    CoolItem: Done(),
    **queues.YES,
}
_ANSWERS: dict[str, Callable[[list[Any]], Answer]] = {
    "busy": lambda reply: Busy(reply[1], int(reply[2]), reply[3], None if reply[4] < 0 else reply[4]),
    "refused": lambda reply: Refused(reply[1]),
    "not held": lambda reply: NotHeld(reply[1], reply[2]),
    "marked": lambda reply: Marked(*reply[1:]),
    "standing": _standing,
    "listing": _listing,
    "full": lambda reply: AtCapacity(reply[1]),
    "kept": lambda reply: HandedOff(reply[1], reply[2]),
    "letters": _letters,
    "lent": lambda reply: Granted(int(reply[1]), reply[2], reply[3]),
    "short": lambda reply: Busy("", int(reply[2]), reply[3], None if reply[4] < 0 else reply[4], reply[1], *reply[5:]),
    "changed": lambda reply: PoolChanged(reply[1], reply[2], tuple(sorted(reply[3:]))),
    "lent items": lambda reply: ItemsStillLent(tuple(sorted(reply[1:]))),
    "unknown items": lambda reply: UnknownItems(tuple(reply[1:])),
    "tally": _tally,
    **tallies.ANSWERS,
    **queues.ANSWERS,
}
