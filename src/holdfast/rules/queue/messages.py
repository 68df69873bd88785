"""The law of queues: what is sent, who gets it, what becomes of it.

A depot and a command go in, the answer comes out, and the depot has been told what changed. No clock, no input, no
output. After each step a message is in exactly one place; whoever is rung finds something, unless somebody was faster.

Messages of one key are in each other's way on purpose: the next is ready when the one before it is done or dead, and
not while it is tried again. So nobody has two of them at once, and they come in the order in which they were sent.

A publish, a take and a conclusion cost what they name and no more, however long the queue is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.commands import NotHeld
from holdfast.commands.queue import (
    ACK,
    BATCH_MAX,
    QUARANTINE,
    REJECT,
    RELEASE,
    RETRY,
    VERIFY,
    Delivery,
    MessageOutcome,
    NewMessage,
    OutcomesRecorded,
    Publish,
    Published,
    PublishRefused,
    Receive,
    Received,
    RecordOutcomes,
    StoredDeadLetter,
    StoredMessage,
)
from holdfast.rules.lease_record import Moment
from holdfast.rules.queue.state import ConsumerRecord, QueueEntry, QueueState, lane_of
from holdfast.rules.result import RuleResult, Wakeup

# How long a publish is known, so that a second copy of it sends nothing.
RESULT_MEMORY_MS = 60_000
# How long a consumer may take to come back idle for a suspect before another one is asked to.
DRAIN_US = 30_000_000
UNKNOWN_CONSUMER = NotHeld("expired", "this consumer was taken for dead, or the engine has forgotten it")


def next_fence(state: QueueState, moment: Moment, count: int = 1) -> int:
    """The first of so many fences, all larger than every one before."""
    first = max(state.fence + 1, moment.wall_us)
    state.fence = first + count - 1 if count else state.fence
    return first


def ring(state: QueueState, count: int, moment: Moment) -> list[Wakeup]:
    """So many of those who have waited longest, and live: they wait no more, and are to be rung."""
    calls: list[Wakeup] = []
    while len(calls) < count and (token := state.first_waiting()) is not None:
        state.remove_waiting(token)
        member = state.get_consumer(token)
        if member is not None and member.ends_us > moment.now_us and member.client not in moment.gone:
            calls.append(Wakeup(member.client, token))
    return calls


def publish(state: QueueState, command: Publish, moment: Moment) -> RuleResult:
    """Send all of them, or none."""
    said = state.earlier_result(command.token, moment.wall_us)
    if said is not None:
        return RuleResult(Published(said), [])
    ids, fresh = _sorted_out(state, command, moment)
    if command.bound and fresh and state.size + len(fresh) > command.bound:
        return RuleResult(PublishRefused(state.size), [])

    ready = 0
    for draft in fresh:
        message = StoredMessage(draft.id, draft.body, draft.headers, draft.key, draft.lane, moment.wall_us)
        ready += add(state, message, draft.delay_ms, moment)
        if draft.dedup_key:
            state.remember_dedup(draft.dedup_key, draft.id, moment.wall_us + draft.dedup_ms * 1000)
    state.add_to_counter("published", len(fresh))
    state.add_to_counter("deduplicated", len(ids) - len(fresh))
    state.remember_result(command.token, ids, moment.wall_us + RESULT_MEMORY_MS * 1000)
    return RuleResult(Published(ids), ring(state, ready, moment))


def _sorted_out(state: QueueState, command: Publish, moment: Moment) -> tuple[tuple[str, ...], list[NewMessage]]:
    """The id that each will have, and those that were not sent before, by this call or an earlier one."""
    ids: list[str] = []
    fresh: list[NewMessage] = []
    seen: dict[str, str] = {}
    for draft in command.messages:
        known = draft.dedup_key and (seen.get(draft.dedup_key) or state.dedup_id(draft.dedup_key, moment.wall_us))
        if not known:
            fresh.append(draft)
            if draft.dedup_key:
                seen[draft.dedup_key] = draft.id
        ids.append(known or draft.id)
    return tuple(ids), fresh


def add(state: QueueState, message: StoredMessage, delay_ms: int, moment: Moment) -> bool:
    """One that was not there before: behind others of its key, delayed or ready; true if it is ready."""
    if message.key and state.key_head(message.key) is not None:
        state.add_behind(message)
        return False
    return _put(state, message, delay_ms, moment)


def follow(state: QueueState, message: StoredMessage) -> bool:
    """This one is gone for good: whoever stood behind it is ready now. True if there was one."""
    following = state.pop_next_of_key(message.key) if message.key else None
    if following is None:
        return False
    state.add_ready(lane_of(following), following)
    return True


def _put(state: QueueState, message: StoredMessage, delay_ms: int, moment: Moment) -> bool:
    """Ready or delayed; true if it is ready."""
    if delay_ms > 0:
        state.add_delayed(message, moment.wall_us + delay_ms * 1000)
    else:
        state.add_ready(lane_of(message), message)
    return delay_ms <= 0


def take(state: QueueState, command: Receive, moment: Moment) -> RuleResult:
    """Give what there is; ring others if more is left than was taken."""
    member = living(state, command.token)
    if member is None:
        return RuleResult(UNKNOWN_CONSUMER, [])
    if member.ends_us <= moment.now_us:  # late, but not taken for dead: whoever speaks lives
        state.put_consumer(member._replace(ends_us=moment.now_us + member.ttl_ms * 1000))
    for message in state.pop_due(moment.wall_us, BATCH_MAX):
        state.add_ready(lane_of(message), message)

    forgotten, gone = _compared(state, command)
    found = forgotten or _found(state, command, moment)
    position = state.add_waiting(command.token) if command.wait and not found else None
    if position is None:
        state.remove_waiting(command.token)
    drain = _calls(state, command, moment)
    left = sum(state.ready_count(lane) for lane in command.lanes)
    answer = Received(tuple(map(delivered, found)), position, due_ms(state, moment), drain, gone)
    return RuleResult(answer, ring(state, left, moment))


def living(state: QueueState, token: str) -> ConsumerRecord | None:
    """The consumer of this incarnation, if it was not taken for dead."""
    member = state.get_consumer(token)
    return None if member is None or member.blame else member


def delivered(entry: QueueEntry) -> Delivery:
    """What its consumer is told of it."""
    return Delivery(entry.entry, entry.fence, entry.lane == QUARANTINE, entry.message)


def _compared(state: QueueState, command: Receive) -> tuple[list[QueueEntry], tuple[str, ...]]:
    """What is with the consumer, and it does not know: an answer was lost. At most as many as it asks for.

    And what it says that it has, and has not. Whoever keeps thousands asks only for their names.
    """
    if command.known_entries is None:
        return _newer(state, command), ()
    token, known, limit = command.token, set(command.known_entries), len(command.known_entries) + BATCH_MAX
    names = state.held_entries(token, limit)
    some, has = len(names) == limit, set(names)
    gone = (each for each in command.known_entries if each not in has and not (some and state.find_held(token, each)))
    found = (state.find_held(token, each) for each in [each for each in names if each not in known][: command.most])
    return [each for each in found if each is not None], tuple(gone)


def _newer(state: QueueState, command: Receive) -> list[QueueEntry]:
    """What was given to the consumer after all that it has seen, the smallest fence first."""
    if command.seen_fence < 0 or not any(each.fence > command.seen_fence for each in state.newest_held(command.token, 1)):
        return []
    entries = state.newest_held(command.token, state.held_counts(command.token)[0])
    newer = [each for each in entries if each.fence > command.seen_fence]
    return newer[::-1][: command.most]


def _found(state: QueueState, command: Receive, moment: Moment) -> list[QueueEntry]:
    """What is ready. Suspects come alone, and only to whoever has nothing else that is new."""
    fence, most = next_fence(state, moment, 0), command.most
    found: list[QueueEntry] = []
    if command.quarantine_max and most:
        found = state.deliver_ready(QUARANTINE, min(command.quarantine_max, most), command.token, fence, moment.now_us)
    if found:
        state.drain_token, most = "", 0
    elif command.fair_share:
        most = min(most, _share(state, command))
    for lane in command.lanes:
        if len(found) < most:
            found += state.deliver_ready(lane, most - len(found), command.token, fence + len(found), moment.now_us)
    state.add_to_counter("received", len(found))
    if found:
        next_fence(state, moment, len(found))
    return found


def _share(state: QueueState, command: Receive) -> int:
    """An equal part of what is ready, and not more than would be an equal part of everything; but always one.

    Else whoever is fast would have most; and if others take no more, nothing may be left for ever.
    """
    mine, held = state.held_counts(command.token)
    ready = sum(state.ready_count(lane) for lane in dict.fromkeys(command.lanes))
    return max(1, min(-(-ready // state.consumer_count), -(-(ready + held) // state.consumer_count) - mine))


def _calls(state: QueueState, command: Receive, moment: Moment) -> bool:
    """Whether this consumer is asked to come back idle: one at a time, so that the others go on."""
    if not state.ready_count(QUARANTINE):
        return False
    if state.drain_token not in ("", command.token) and state.drain_until_us > moment.now_us:
        return False
    if state.drain_token != command.token or state.drain_until_us <= moment.now_us:
        state.drain_token, state.drain_until_us = command.token, moment.now_us + DRAIN_US
    return True


def due_ms(state: QueueState, moment: Moment) -> int:
    """When the next delay is over; rounded up, so that whoever asks then finds it. 0 if there is none."""
    due_us = state.next_due_us()
    return max(1, -(-(due_us - moment.wall_us) // 1000)) if due_us else 0


def conclude(state: QueueState, command: RecordOutcomes, moment: Moment) -> RuleResult:
    """Each by itself: what is with this consumer is concluded, what is not is lost to it."""
    member = living(state, command.token)
    lost: list[str] = []
    counts = dict.fromkeys(_WORDS, 0)
    ready = 0
    for outcome in command.outcomes:
        entry = None if member is None else state.find_held(command.token, outcome.entry)
        if member is None or entry is None:
            lost.append(outcome.entry)
            continue
        counts[outcome.kind] += 1
        if outcome.kind != VERIFY:
            state.remove_held(command.token, outcome.entry)
            ready += _concluded(state, member, entry, outcome, moment)
    for kind, word in _WORDS.items():
        if word:
            state.add_to_counter(word, counts[kind])
    state.add_to_counter("lost", len(lost))
    if counts[REJECT]:
        make_room(state, command.dead_max)
    return RuleResult(OutcomesRecorded(tuple(lost)), ring(state, ready, moment))


_WORDS = {ACK: "acked", RETRY: "retried", RELEASE: "released", REJECT: "dead_lettered", VERIFY: ""}


def _concluded(
    state: QueueState, member: ConsumerRecord, entry: QueueEntry, outcome: MessageOutcome, moment: Moment
) -> bool:
    """True if it is ready again, or the one that stood behind it is."""
    if outcome.kind == ACK:
        return follow(state, entry.message)
    if outcome.kind == RELEASE:
        return _put(state, entry.message, outcome.delay_ms, moment)
    # Its consumer has lived to tell: whatever was suspected, it kills nobody.
    tried = failed(entry.message, member, outcome.error or outcome.reason)._replace(crashes=0)
    if outcome.kind == RETRY:
        return _put(state, tried, outcome.delay_ms, moment)
    state.add_dead_letter(StoredDeadLetter(outcome.reason, moment.wall_us, tried))
    return follow(state, tried)


def failed(
    message: StoredMessage, member: ConsumerRecord, why: str, *, attempts: int = 1, crashes: int = 0
) -> StoredMessage:
    """The message after it went wrong with this consumer."""
    return message._replace(
        attempts=message.attempts + attempts,
        crashes=message.crashes + crashes,
        first_consumer=message.first_consumer or member.label,
        last_consumer=member.label,
        last_error=why,
    )


def make_room(state: QueueState, most: int) -> None:
    """No more dead letters than that; what had to go is counted. 0 is any number."""
    if most:
        state.add_to_counter("evicted", state.evict_dead_letters(most))


QueueRule = Callable[[QueueState, Any, Moment], RuleResult]
