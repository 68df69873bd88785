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
from holdfast.rules.queue.consumers import beat, join, leave, list_keys, reap, take_over
from holdfast.rules.queue.messages import RESULT_MEMORY_MS, QueueRule, add, conclude, due_ms, publish, ring, take
from holdfast.rules.queue.state import QueueState, dead_letter_position
from holdfast.rules.result import RuleResult


def list_dead(state: QueueState, command: ListDeadLetters, moment: Moment) -> RuleResult:  # noqa: ARG001 - as all rules
    """A page of them."""
    letters = state.list_dead_letters(command.after, command.limit)
    last = dead_letter_position(letters[-1]) if letters and len(letters) == command.limit else ""
    return RuleResult(DeadLetterPage(tuple(letters), last), [])


def get_dead(state: QueueState, command: GetDeadLetter, moment: Moment) -> RuleResult:  # noqa: ARG001
    """One or none."""
    letter = state.get_dead_letter(command.id)
    return RuleResult(DeadLetterPage(() if letter is None else (letter,), ""), [])


def redrive(state: QueueState, command: Redrive, moment: Moment) -> RuleResult:
    """Messages again, at the end of their lanes, or behind all others of their keys."""
    said = _said(state, command, moment)
    if said is not None:
        return RuleResult(DeadLettersRemoved(said), [])
    moved: list[str] = []
    ready = 0
    for each in command.ids:
        letter = state.get_dead_letter(each)
        if letter is None:
            continue
        message = letter.message._replace(crashes=0)
        if command.reset:
            message = message._replace(attempts=0, first_consumer="", last_consumer="", last_error="")
        state.remove_dead_letter(each)
        ready += add(state, message, 0, moment)
        moved.append(each)
    state.add_to_counter("redriven", len(moved))
    _say(state, command, moved, moment)
    return RuleResult(DeadLettersRemoved(tuple(moved)), ring(state, ready, moment))


def purge(state: QueueState, command: Purge, moment: Moment) -> RuleResult:
    """Forgotten."""
    said = _said(state, command, moment)
    if said is not None:
        return RuleResult(DeadLettersRemoved(said), [])
    gone = [each for each in dict.fromkeys(command.ids) if state.get_dead_letter(each) is not None]
    for each in gone:
        state.remove_dead_letter(each)
    state.add_to_counter("purged", len(gone))
    _say(state, command, gone, moment)
    return RuleResult(DeadLettersRemoved(tuple(gone)), [])


def _said(state: QueueState, command: Redrive | Purge, moment: Moment) -> tuple[str, ...] | None:
    return state.earlier_result(command.token, moment.wall_us) if command.token else None


def _say(state: QueueState, command: Redrive | Purge, moved: list[str], moment: Moment) -> None:
    """What was moved is known for a while, so that a second copy answers the same."""
    if command.token and moved:
        state.remember_result(command.token, tuple(moved), moment.wall_us + RESULT_MEMORY_MS * 1000)


def gauge(state: QueueState, command: GetStats, moment: Moment) -> RuleResult:  # noqa: ARG001
    """Figures."""
    now = state.totals()
    oldest_ms = max(0, moment.wall_us - now.oldest_us) // 1000 if now.oldest_us else -1
    places = (now.ready, now.quarantined, now.delayed, now.held, now.dead, now.waiting, now.consumers)
    return RuleResult(QueueCounts(*places, oldest_ms, due_ms(state, moment), now.counts, now.behind), [])


def roll(state: QueueState, command: ListConsumers, moment: Moment) -> RuleResult:
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
        for member, held in state.list_consumers(command.limit)
    ]
    return RuleResult(ConsumerList(tuple(seen)), [])


def peek(state: QueueState, command: Peek, moment: Moment) -> RuleResult:
    """The first of a place."""
    return RuleResult(Peeked(tuple(state.peek(command.place, command.limit, command.lane, moment.wall_us))), [])


def audit(state: QueueState, command: CheckConsistency, moment: Moment) -> RuleResult:  # noqa: ARG001
    """Every message, once."""
    messages, faults = state.check_consistency()
    return RuleResult(ConsistencyChecked(messages, tuple(faults)), [])


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
