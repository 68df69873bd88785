"""Rules for dead letters: list them, redrive them, purge them."""

from __future__ import annotations

from holdfast.commands.queue import (
    PAGE_BYTES,
    DeadLetterPage,
    DeadLettersRemoved,
    DeadPositions,
    GetDeadLetter,
    ListDeadLetters,
    ListDeadPositions,
    Purge,
    Redrive,
    StoredDeadLetter,
)
from holdfast.rules.lease_record import Moment
from holdfast.rules.queue.messages import RESULT_MEMORY_MS, add_message, wake_waiting
from holdfast.rules.queue.state import PURGED, REDRIVEN, QueueState, position_of_dead_letter
from holdfast.rules.result import RuleResult


def list_dead_letters(state: QueueState, command: ListDeadLetters, moment: Moment) -> RuleResult:  # noqa: ARG001 - as all rules
    """Return a page of dead letters, the oldest first."""
    dead_letters: list[StoredDeadLetter] = []
    size = 0
    for each in state.list_dead_letters(command.after, command.limit):
        dead_letters.append(each)
        size += len(each.message.body)
        if size >= PAGE_BYTES:
            break
    more = size >= PAGE_BYTES or (dead_letters and len(dead_letters) == command.limit)
    last = position_of_dead_letter(dead_letters[-1]) if more else ""
    return RuleResult(DeadLetterPage(tuple(dead_letters), last), [])


def list_dead_positions(state: QueueState, command: ListDeadPositions, moment: Moment) -> RuleResult:  # noqa: ARG001
    """Return the positions of dead letters, the oldest first."""
    return RuleResult(DeadPositions(tuple(state.dead_positions(command.after, command.limit))), [])


def get_dead_letter(state: QueueState, command: GetDeadLetter, moment: Moment) -> RuleResult:  # noqa: ARG001
    """Return one dead letter, or none."""
    dead_letter = state.get_dead_letter(command.id)
    return RuleResult(DeadLetterPage(() if dead_letter is None else (dead_letter,), ""), [])


def redrive(state: QueueState, command: Redrive, moment: Moment) -> RuleResult:
    """Publish dead letters again, at the end of their lanes or behind all others of their keys."""
    earlier = _earlier_result(state, command, moment)
    if earlier is not None:
        return RuleResult(DeadLettersRemoved(earlier), [])
    redriven: list[str] = []
    ready = size = 0
    for each in command.ids:
        if size >= PAGE_BYTES:
            break
        dead_letter = state.get_dead_letter(each)
        if dead_letter is None:
            continue
        size += len(dead_letter.message.body)
        message = dead_letter.message._replace(crashes=0)
        if command.reset:
            message = message._replace(attempts=0, first_consumer="", last_consumer="", last_error="")
        state.remove_dead_letter(each)
        ready += add_message(state, message, 0, moment)
        redriven.append(each)
    state.add_to_counter(REDRIVEN, len(redriven))
    _remember_result(state, command, redriven, moment)
    return RuleResult(DeadLettersRemoved(tuple(redriven)), wake_waiting(state, ready, moment))


def purge(state: QueueState, command: Purge, moment: Moment) -> RuleResult:
    """Delete dead letters."""
    earlier = _earlier_result(state, command, moment)
    if earlier is not None:
        return RuleResult(DeadLettersRemoved(earlier), [])
    remove = state.remove_dead_position if command.by_position else state.remove_dead_letter
    purged = [each for each in command.ids if remove(each)]
    state.add_to_counter(PURGED, len(purged))
    _remember_result(state, command, purged, moment)
    return RuleResult(DeadLettersRemoved(tuple(purged)), [])


def _earlier_result(state: QueueState, command: Redrive | Purge, moment: Moment) -> tuple[str, ...] | None:
    return state.earlier_result(command.token, moment.wall_us) if command.token else None


def _remember_result(state: QueueState, command: Redrive | Purge, ids: list[str], moment: Moment) -> None:
    """Remember the removed dead letters for a while, so that a second copy of the command gets the same answer."""
    if command.token and ids:
        state.remember_result(command.token, tuple(ids), moment.wall_us + RESULT_MEMORY_MS * 1000)
