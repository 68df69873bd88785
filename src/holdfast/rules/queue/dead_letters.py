"""The law of dead letters, and what people may see of a queue."""

from __future__ import annotations

from holdfast.commands.queue import (
    ConsumerHeartbeat,
    DeadLetterPage,
    DeadLettersRemoved,
    GetDeadLetter,
    Join,
    Leave,
    ListDeadLetters,
    ListKeys,
    Publish,
    Purge,
    Receive,
    ReclaimExpired,
    RecordOutcomes,
    Redrive,
    TakeOver,
)
from holdfast.commands.queue_admin import (
    CheckConsistency,
    ConsistencyChecked,
    ConsumerInfo,
    ConsumerList,
    GetStats,
    ListConsumers,
    Peek,
    Peeked,
    QueueCounts,
)
from holdfast.rules.lease_record import Moment
from holdfast.rules.pool import Dealt
from holdfast.rules.queue.consumers import beat, join, leave, list_keys, reap, take_over
from holdfast.rules.queue.messages import SAID_MS, QueueRule, add, conclude, due_ms, publish, ring, take
from holdfast.rules.queue.state import QueueState, place_of


def list_dead(depot: QueueState, command: ListDeadLetters, moment: Moment) -> Dealt:  # noqa: ARG001 - as all rules
    """A page of them."""
    letters = depot.letters(command.after, command.limit)
    last = place_of(letters[-1]) if letters and len(letters) == command.limit else ""
    return Dealt(DeadLetterPage(tuple(letters), last), [])


def get_dead(depot: QueueState, command: GetDeadLetter, moment: Moment) -> Dealt:  # noqa: ARG001
    """One or none."""
    letter = depot.letter(command.id)
    return Dealt(DeadLetterPage(() if letter is None else (letter,), ""), [])


def redrive(depot: QueueState, command: Redrive, moment: Moment) -> Dealt:
    """Messages again, at the end of their lanes, or behind all others of their keys."""
    said = _said(depot, command, moment)
    if said is not None:
        return Dealt(DeadLettersRemoved(said), [])
    moved: list[str] = []
    ready = 0
    for each in command.ids:
        letter = depot.letter(each)
        if letter is None:
            continue
        message = letter.message._replace(crashes=0)
        if command.reset:
            message = message._replace(attempts=0, first="", last="", why="")
        depot.exhume(each)
        ready += add(depot, message, 0, moment)
        moved.append(each)
    depot.count("redriven", len(moved))
    _say(depot, command, moved, moment)
    return Dealt(DeadLettersRemoved(tuple(moved)), ring(depot, ready, moment))


def purge(depot: QueueState, command: Purge, moment: Moment) -> Dealt:
    """Forgotten."""
    said = _said(depot, command, moment)
    if said is not None:
        return Dealt(DeadLettersRemoved(said), [])
    gone = [each for each in dict.fromkeys(command.ids) if depot.letter(each) is not None]
    for each in gone:
        depot.exhume(each)
    depot.count("purged", len(gone))
    _say(depot, command, gone, moment)
    return Dealt(DeadLettersRemoved(tuple(gone)), [])


def _said(depot: QueueState, command: Redrive | Purge, moment: Moment) -> tuple[str, ...] | None:
    return depot.said(command.token, moment.wall_us) if command.token else None


def _say(depot: QueueState, command: Redrive | Purge, moved: list[str], moment: Moment) -> None:
    """What was moved is known for a while, so that a second copy answers the same."""
    if command.token and moved:
        depot.say(command.token, tuple(moved), moment.wall_us + SAID_MS * 1000)


def gauge(depot: QueueState, command: GetStats, moment: Moment) -> Dealt:  # noqa: ARG001
    """Figures."""
    now = depot.totals()
    oldest_ms = max(0, moment.wall_us - now.oldest_us) // 1000 if now.oldest_us else -1
    places = (now.ready, now.suspects, now.delayed, now.held, now.dead, now.hungry, now.consumers)
    return Dealt(QueueCounts(*places, oldest_ms, due_ms(depot, moment), now.counts, now.behind), [])


def roll(depot: QueueState, command: ListConsumers, moment: Moment) -> Dealt:
    """Who is there."""
    seen = [
        ConsumerInfo(
            member.token,
            member.label,
            member.holder,
            member.fence,
            held,
            (moment.now_us - member.since_us) // 1000,
            max(0, member.ends_us - moment.now_us) // 1000,
        )
        for member, held in depot.members(command.limit)
    ]
    return Dealt(ConsumerList(tuple(seen)), [])


def peek(depot: QueueState, command: Peek, moment: Moment) -> Dealt:
    """The first of a place."""
    return Dealt(Peeked(tuple(depot.peek(command.place, command.limit, command.lane, moment.wall_us))), [])


def audit(depot: QueueState, command: CheckConsistency, moment: Moment) -> Dealt:  # noqa: ARG001
    """Every message, once."""
    messages, faults = depot.audit()
    return Dealt(ConsistencyChecked(messages, tuple(faults)), [])


QUEUE_RULES: dict[type, QueueRule] = {
    Publish: publish,
    Join: join,
    ConsumerHeartbeat: beat,
    Leave: leave,
    Receive: take,
    RecordOutcomes: conclude,
    ReclaimExpired: reap,
    TakeOver: take_over,
    ListKeys: list_keys,
    ListDeadLetters: list_dead,
    GetDeadLetter: get_dead,
    Redrive: redrive,
    Purge: purge,
    GetStats: gauge,
    ListConsumers: roll,
    Peek: peek,
    CheckConsistency: audit,
}
