"""The commands of queues: their scripts, their bytes, and what the replies mean.

All keys of a queue stand behind `hf1:{NAME}:mq` and share its slot. A message is one text, made by its sender and
headed by what has become of it; `lua/queue_letters.lua` tells how it is read, and this reads it in the same way. Bodies
are bytes: replies come as texts in which bytes that are no text are escaped, and go back to bytes unharmed.
"""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, Any

from holdfast.commands import Answer, Released, Renewed
from holdfast.commands.queue import (
    ACK,
    QUARANTINE,
    ConsumerHeartbeat,
    DeadLetterPage,
    DeadLettersRemoved,
    Delivery,
    GetDeadLetter,
    Join,
    KeysHeld,
    Leave,
    LeaveUnfinished,
    ListDeadLetters,
    ListKeys,
    MessageOutcome,
    NewMessage,
    NotTakenOver,
    OutcomesRecorded,
    Publish,
    Published,
    PublishRefused,
    Purge,
    Receive,
    Received,
    Reclaimed,
    ReclaimExpired,
    RecordOutcomes,
    Redrive,
    StoredDeadLetter,
    StoredMessage,
    TakeOver,
)
from holdfast.commands.queue_admin import (
    CheckConsistency,
    ConsistencyPage,
    ConsumerInfo,
    ConsumerList,
    GetStats,
    ListConsumers,
    Peek,
    Peeked,
    PlacedMessage,
    QueueCounts,
)
from holdfast.engines.redis.script import Script
from holdfast.rules.queue.messages import UNKNOWN_CONSUMER
from holdfast.rules.queue.state import lane_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.engines.redis.resp import Argument

# Commands.


def _draft(draft: NewMessage) -> tuple[Argument, ...]:
    id_, headers, key, lane = (each.encode() for each in (draft.id, draft.headers, draft.key, draft.lane))
    options = b""
    if draft.delay_ms or draft.dedup_key or key or lane:
        options = b"%d %d\n%b" % (draft.delay_ms, draft.dedup_ms, draft.dedup_key.encode())
    spans = (len(id_), len(headers), len(key), len(lane))
    return id_, options, b"%d %d %d %d\n%b%b%b%b%b" % (*spans, id_, headers, key, lane, draft.body)


def _publish(command: Publish) -> tuple[Argument, ...]:
    return (command.token, str(command.bound), *(word for draft in command.messages for word in _draft(draft)))


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _take(command: Receive) -> tuple[Argument, ...]:
    seen = ("seen", str(command.seen_fence)) if command.seen_fence >= 0 else ()
    known = seen if command.known_entries is None else ("known", *command.known_entries)
    flags = (_flag(command.wait), str(int(command.quarantine_max)), _flag(command.fair_share))
    return (command.token, str(command.most), *flags, str(len(command.lanes)), *command.lanes, *known)


def _outcome(outcome: MessageOutcome) -> tuple[Argument, ...]:
    if outcome.kind == ACK:
        return outcome.entry, b""
    reason = outcome.reason.encode()
    how = b"%b %d %d\n%b%b" % (outcome.kind.encode(), outcome.delay_ms, len(reason), reason, outcome.error.encode())
    return outcome.entry, how


def _conclude(command: RecordOutcomes) -> tuple[Argument, ...]:
    return (command.token, str(command.dead_max), *(word for outcome in command.outcomes for word in _outcome(outcome)))


def _audit(command: CheckConsistency) -> tuple[Argument, ...]:
    """Somebody else may have written any bytes there: what was read goes back unharmed."""
    return (command.part, _raw(command.which), command.at, str(command.most), *map(_raw, command.candidates))


def _numbers(*numbers: int) -> tuple[Argument, ...]:
    return tuple(map(str, numbers))


SCRIPTS: dict[type, Script] = {
    Publish: Script("queue/publish", _publish),
    Join: Script(
        "queue/join",
        lambda command: (
            command.token,
            command.holder,
            command.label,
            str(command.ttl_ms),
            _flag(command.keeps_messages),
            _flag(command.announce_expiry),
        ),
    ),
    ConsumerHeartbeat: Script("queue/heartbeat", lambda command: (command.token, str(command.ttl_ms))),
    Leave: Script("queue/leave", lambda command: (command.token,)),
    Receive: Script("queue/receive", _take),
    RecordOutcomes: Script("queue/outcomes", _conclude),
    ReclaimExpired: Script(
        "queue/reclaim",
        lambda command: _numbers(
            command.interval_ms, command.grace_ms, command.postpone_ms, command.attempts_max, command.dead_max
        ),
    ),
    TakeOver: Script(
        "queue/take_over",
        lambda command: (command.token, command.key, *_numbers(command.attempts_max, command.dead_max)),
    ),
    ListKeys: Script("queue/keys", lambda command: (command.token, str(command.limit))),
    ListDeadLetters: Script("queue/dead_letters", lambda command: ("list", command.after, str(command.limit))),
    GetDeadLetter: Script("queue/dead_letters", lambda command: ("get", command.id, "1")),
    Redrive: Script(
        "queue/redrive", lambda command: ("reset" if command.reset else "redrive", command.token, *command.ids)
    ),
    Purge: Script("queue/redrive", lambda command: ("purge", command.token, *command.ids)),
    GetStats: Script("queue/stats", lambda _command: ()),
    ListConsumers: Script("queue/consumers", lambda command: (str(command.limit),)),
    Peek: Script("queue/peek", lambda command: (command.place, str(command.limit), command.lane)),
    CheckConsistency: Script("queue/check", _audit),
}

# Replies.

_HEAD = re.compile(rb"(\d+) (\d+) (\d+) (\d+) (\d+) (\d+)\n", re.ASCII)
_TAIL = re.compile(rb"(\d+) (\d+) (\d+) (\d+)\n", re.ASCII)
_LETTER = re.compile(rb"(\d+) (\d+)\n", re.ASCII)


def _cut(raw: bytes, at: int, *lengths: int) -> Iterator[str]:
    """Texts of these lengths, one after the other."""
    for length in lengths:
        yield raw[at : at + length].decode(errors="replace")
        at += length


def _message(entry: str, raw: bytes) -> StoredMessage:
    """What a text says. One that is not a message's is the body of one, so that a reader never fails by it."""
    head = _HEAD.match(raw)
    if head is not None:
        published_us, attempts, crashes, *spans = map(int, head.groups())
        begin = head.end() + sum(spans)
        tail = _TAIL.match(raw, begin)
        if tail is not None:
            lengths = tuple(map(int, tail.groups()))
            end = tail.end() + sum(lengths)
            if end <= len(raw):
                told = _cut(raw, head.end(), *spans)
                return StoredMessage(*_sent(raw, tail.end(), lengths, end), published_us, attempts, crashes, *told)
    return StoredMessage(f"foreign-{entry}", raw, "", "", "", 0)


def _sent(raw: bytes, begin: int, lengths: tuple[int, ...], end: int) -> tuple[str, bytes, str, str, str]:
    id_, headers, key, lane = _cut(raw, begin, *lengths)
    return id_, raw[end:], headers, key, lane


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _taken(reply: list[Any]) -> Received:
    _, position, next_ms, drain, told, gone, *rest = reply
    fences = count(int(told[0])) if len(told) == 1 else map(int, told)
    deliveries = []
    for at, fence in zip(range(0, len(rest), 2), fences, strict=False):
        message = _message(rest[at], _raw(rest[at + 1]))
        deliveries.append(Delivery(rest[at], fence, lane_of(message) == QUARANTINE, message))
    return Received(tuple(deliveries), None if position < 0 else position, next_ms, drain == 1, tuple(gone))


def _letter(text: str) -> StoredDeadLetter:
    raw = _raw(text)
    head = _LETTER.match(raw)
    if head is None:
        return StoredDeadLetter("", 0, _message("", raw))
    died_us, length = map(int, head.groups())
    reason = raw[head.end() : head.end() + length].decode(errors="replace")
    return StoredDeadLetter(reason, died_us, _message("", raw[head.end() + length :]))


def _gauged(reply: list[Any]) -> QueueCounts:
    counts = sorted((reply[at], reply[at + 1]) for at in range(11, len(reply), 2))
    figures: Any = (*reply[1:10], tuple(counts), reply[10])
    return QueueCounts(*figures)


def _rolled(reply: list[Any]) -> ConsumerList:
    seen = []
    for at in range(1, len(reply), 7):
        token, label, holder, fence, held, since_ms, remaining_ms = reply[at : at + 7]
        seen.append(ConsumerInfo(token, label, holder, int(fence), held, since_ms, remaining_ms))
    return ConsumerList(tuple(seen))


def _peeked(reply: list[Any]) -> Peeked:
    glimpses = []
    for at in range(1, len(reply), 4):
        entry, text, token, due_ms = reply[at : at + 4]
        glimpses.append(PlacedMessage(_message(entry, _raw(text)), token, due_ms))
    return Peeked(tuple(glimpses))


def _sighted(reply: list[Any]) -> ConsistencyPage:
    _, at, words, told, by = reply
    faults = tuple((told[first], told[first + 1], told[first + 2]) for first in range(0, len(told), 3))
    return ConsistencyPage(at, tuple(words), faults, by)


DONE: dict[type, Answer] = {ConsumerHeartbeat: Renewed(), Leave: Released()}
REPLIES: dict[str, Callable[[list[Any]], Answer]] = {
    "unknown consumer": lambda _reply: UNKNOWN_CONSUMER,
    "published": lambda reply: Published(tuple(reply[1:])),
    "crowded": lambda reply: PublishRefused(reply[1]),
    "taken": _taken,
    "leaving": lambda _reply: LeaveUnfinished(),
    "elsewhere": lambda reply: NotTakenOver(reply[1], reply[2], int(reply[3])),
    "keys held": lambda reply: KeysHeld(tuple(reply[2:]), reply[1]),
    "concluded": lambda reply: OutcomesRecorded(tuple(reply[1:])),
    "reclaimed": lambda reply: Reclaimed(reply[1] == 1, reply[2] == 1, *reply[3:]),
    "dead letters": lambda reply: DeadLetterPage(tuple(map(_letter, reply[2:])), reply[1]),
    "moved": lambda reply: DeadLettersRemoved(tuple(reply[1:])),
    "gauged": _gauged,
    "rolled": _rolled,
    "peeked": _peeked,
    "sighted": _sighted,
}
