"""The commands of queues on Redis: scripts, arguments and replies.

All keys of a queue begin with `PREFIX:{NAME}:queue` and share its slot. A message is one text: the part that its
producer made, behind the record of its deliveries; `lua/queue/message.lua` documents and parses it, and this module
parses it in the same way. Bodies are bytes: replies arrive as text in which bytes that are not UTF-8 are escaped, and
become the same bytes again.
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
    DeadPositions,
    Delivery,
    GetDeadLetter,
    Join,
    KeysHeld,
    Leave,
    LeaveUnfinished,
    ListDeadLetters,
    ListDeadPositions,
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


def _message_arguments(message: NewMessage) -> tuple[Argument, ...]:
    id_, headers, key, lane = (each.encode() for each in (message.id, message.headers, message.key, message.lane))
    options = b""
    if message.delay_ms or message.dedup_key or key or lane:
        options = b"%d %d\n%b" % (message.delay_ms, message.dedup_ms, message.dedup_key.encode())
    lengths = (len(id_), len(headers), len(key), len(lane))
    return id_, options, b"%d %d %d %d\n%b%b%b%b%b" % (*lengths, id_, headers, key, lane, message.body)


def _publish(command: Publish) -> tuple[Argument, ...]:
    arguments = (argument for message in command.messages for argument in _message_arguments(message))
    return (command.token, str(command.bound), *arguments)


def _join(command: Join) -> tuple[Argument, ...]:
    flags = (_flag(command.keeps_messages), _flag(command.announce_expiry))
    return (command.token, command.holder, command.label, str(command.ttl_ms), *flags)


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _receive(command: Receive) -> tuple[Argument, ...]:
    seen = ("seen", str(command.seen_fence)) if command.seen_fence >= 0 else ()
    known = seen if command.known_entries is None else ("known", *command.known_entries)
    flags = (_flag(command.wait), str(int(command.quarantine_max)), _flag(command.fair_share))
    return (command.token, str(command.most), *flags, str(len(command.lanes)), *command.lanes, *known)


def _outcome_arguments(outcome: MessageOutcome) -> tuple[Argument, ...]:
    if outcome.kind == ACK:
        return outcome.entry, b""
    kind, reason, error = outcome.kind.encode(), outcome.reason.encode(), outcome.error.encode()
    return outcome.entry, b"%b %d %d\n%b%b" % (kind, outcome.delay_ms, len(reason), reason, error)


def _outcomes(command: RecordOutcomes) -> tuple[Argument, ...]:
    arguments = (argument for outcome in command.outcomes for argument in _outcome_arguments(outcome))
    return (command.token, str(command.dead_max), _flag(command.resent), *arguments)


def _reclaim(command: ReclaimExpired) -> tuple[Argument, ...]:
    times = (command.interval_ms, command.grace_ms, command.postpone_ms)
    return _numbers(*times, command.attempts_max, command.dead_max)


def _take_over(command: TakeOver) -> tuple[Argument, ...]:
    return (command.token, command.key, *_numbers(command.attempts_max, command.dead_max))


def _redrive(command: Redrive) -> tuple[Argument, ...]:
    return ("reset" if command.reset else "redrive", command.token, *command.ids)


def _purge(command: Purge) -> tuple[Argument, ...]:
    return ("purge positions" if command.by_position else "purge", command.token, *command.ids)


def _check(command: CheckConsistency) -> tuple[Argument, ...]:
    """Pack the values as the bytes that an earlier page returned: another program may have written any bytes there."""
    return (command.part, _raw(command.which), command.at, str(command.most), *map(_raw, command.candidates))


def _numbers(*numbers: int) -> tuple[Argument, ...]:
    return tuple(map(str, numbers))


SCRIPTS: dict[type, Script] = {
    Publish: Script("queue/publish", _publish),
    Join: Script("queue/join", _join),
    ConsumerHeartbeat: Script("queue/heartbeat", lambda command: (command.token, str(command.ttl_ms))),
    Leave: Script("queue/leave", lambda command: (command.token,)),
    Receive: Script("queue/receive", _receive),
    RecordOutcomes: Script("queue/outcomes", _outcomes),
    ReclaimExpired: Script("queue/reclaim", _reclaim),
    TakeOver: Script("queue/take_over", _take_over),
    ListKeys: Script("queue/keys", lambda command: (command.token, str(command.limit))),
    ListDeadLetters: Script("queue/dead_letters", lambda command: ("list", command.after, str(command.limit))),
    ListDeadPositions: Script("queue/dead_letters", lambda command: ("positions", command.after, str(command.limit))),
    GetDeadLetter: Script("queue/dead_letters", lambda command: ("get", command.id, "1")),
    Redrive: Script("queue/redrive", _redrive),
    Purge: Script("queue/redrive", _purge),
    GetStats: Script("queue/stats", lambda _command: ()),
    ListConsumers: Script("queue/consumers", lambda command: (str(command.limit),)),
    Peek: Script("queue/peek", lambda command: (command.place, str(command.limit), command.lane)),
    CheckConsistency: Script("queue/check", _check),
}

# Replies.

# A time has at most 16 digits, and a count or a length at most 9: as in lua/queue/message.lua.
_COUNT = rb"(\d{1,9})"
_RECORD = re.compile(rb"(\d{1,16})" + 5 * (b" " + _COUNT) + rb"\n")
_PUBLISHED = re.compile(b" ".join([_COUNT] * 4) + rb"\n")
_DEAD_LETTER = re.compile(rb"(\d{1,16}) " + _COUNT + rb"\n")


def _cut(raw: bytes, at: int, *lengths: int) -> Iterator[str]:
    """Yield consecutive texts of these lengths."""
    for length in lengths:
        yield raw[at : at + length].decode(errors="replace")
        at += length


def _message(entry: str, raw: bytes) -> StoredMessage:
    """Parse a stored message. Bytes that are no message become the body of one, so that reading never fails."""
    record = _RECORD.match(raw)
    if record is not None:
        published_us, attempts, crashes, *lengths = map(int, record.groups())
        published = _PUBLISHED.match(raw, record.end() + sum(lengths))
        if published is not None:
            fields = tuple(map(int, published.groups()))
            body_at = published.end() + sum(fields)
            if body_at <= len(raw):
                id_, headers, key, lane = _cut(raw, published.end(), *fields)
                failures = _cut(raw, record.end(), *lengths)
                body = raw[body_at:]
                return StoredMessage(id_, body, headers, key, lane, published_us, attempts, crashes, *failures)
    return StoredMessage(f"foreign-{entry}", raw, "", "", "", 0)


def _raw(text: str) -> bytes:
    """Return the bytes that a reply text stands for."""
    return text.encode(errors="surrogateescape")


def _received(reply: list[Any]) -> Received:
    _, position, next_ms, drain, first_fences, lost, *rest = reply
    if not {*map(type, rest)} <= {str} or len(rest) % 2:
        raise TypeError("a delivery is an entry and a text")
    fences = count(int(first_fences[0])) if len(first_fences) == 1 else map(int, first_fences)
    deliveries = []
    for at, fence in zip(range(0, len(rest), 2), fences, strict=False):
        message = _message(rest[at], _raw(rest[at + 1]))
        deliveries.append(Delivery(rest[at], fence, lane_of(message) == QUARANTINE, message))
    return Received(tuple(deliveries), None if position < 0 else position, next_ms, drain == 1, tuple(lost))


def _dead_letter(text: str) -> StoredDeadLetter:
    raw = _raw(text)
    head = _DEAD_LETTER.match(raw)
    if head is None:
        return StoredDeadLetter("", 0, _message("", raw))
    died_us, length = map(int, head.groups())
    reason = raw[head.end() : head.end() + length].decode(errors="replace")
    return StoredDeadLetter(reason, died_us, _message("", raw[head.end() + length :]))


def _counts(reply: list[Any]) -> QueueCounts:
    counters = sorted((reply[at], reply[at + 1]) for at in range(11, len(reply), 2))
    figures: Any = (*reply[1:10], tuple(counters), reply[10])
    return QueueCounts(*figures)


def _consumers(reply: list[Any]) -> ConsumerList:
    consumers = []
    for at in range(1, len(reply), 7):
        token, label, holder, fence, held, since_ms, remaining_ms = reply[at : at + 7]
        consumers.append(ConsumerInfo(token, label, holder, int(fence), held, since_ms, remaining_ms))
    return ConsumerList(tuple(consumers))


def _peeked(reply: list[Any]) -> Peeked:
    messages = []
    for at in range(1, len(reply), 4):
        entry, text, token, due_ms = reply[at : at + 4]
        messages.append(PlacedMessage(_message(entry, _raw(text)), token, due_ms))
    return Peeked(tuple(messages))


def _consistency(reply: list[Any]) -> ConsistencyPage:
    _, at, values, flat, server = reply
    faults = tuple((flat[first], flat[first + 1], flat[first + 2]) for first in range(0, len(flat), 3))
    return ConsistencyPage(at, tuple(values), faults, server)


DONE: dict[type, Answer] = {ConsumerHeartbeat: Renewed(), Leave: Released()}
REPLIES: dict[str, Callable[[list[Any]], Answer]] = {
    "unknown consumer": lambda _reply: UNKNOWN_CONSUMER,
    "published": lambda reply: Published(tuple(reply[1:])),
    "publish refused": lambda reply: PublishRefused(reply[1]),
    "received": _received,
    "leave unfinished": lambda _reply: LeaveUnfinished(),
    "not taken over": lambda reply: NotTakenOver(reply[1], reply[2], int(reply[3])),
    "keys held": lambda reply: KeysHeld(tuple(reply[2:]), reply[1]),
    "outcomes": lambda reply: OutcomesRecorded(tuple(reply[1:])),
    "reclaimed": lambda reply: Reclaimed(reply[1] == 1, reply[2] == 1, *reply[3:]),
    "dead letters": lambda reply: DeadLetterPage(tuple(map(_dead_letter, reply[2:])), reply[1]),
    "dead positions": lambda reply: DeadPositions(tuple(reply[1:])),
    "dead letters removed": lambda reply: DeadLettersRemoved(tuple(reply[1:])),
    "counts": _counts,
    "consumers": _consumers,
    "peeked": _peeked,
    "consistency": _consistency,
}
