"""Rules for publishing messages, receiving them, and recording their outcomes.

A rule takes the state of a queue and a command, changes the state, and returns the answer with the consumers to wake.
Rules use no clock and do no I/O. After each step every message is in exactly one place. A consumer that gets a wake-up
finds a message, unless another consumer was faster.

Messages of one key are delivered one at a time, in the order of publication: the next message becomes ready when the
previous one is acked or becomes a dead letter, and not while the previous one is retried.

A publish, a receive and a record of outcomes cost as much as the messages they name, however long the queue is.
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
from holdfast.rules.lease import EXPIRED
from holdfast.rules.lease_record import Moment
from holdfast.rules.queue.state import (
    ACKED,
    DEAD_LETTERED,
    DEDUPLICATED,
    EVICTED,
    LOST,
    PUBLISHED,
    RECEIVED,
    RELEASED,
    RETRIED,
    ConsumerRecord,
    QueueEntry,
    QueueState,
    lane_of,
)
from holdfast.rules.result import RuleResult, Wakeup

# How long the engine remembers the result of a publish, a redrive or a purge, so that a second copy of the command
# changes nothing.
RESULT_MEMORY_MS = 60_000
# How long a consumer may take to drain for a message in quarantine before the engine asks another consumer.
DRAIN_US = 30_000_000
UNKNOWN_CONSUMER = NotHeld(EXPIRED, "this consumer was declared dead, or the engine has forgotten it")


def next_fence(state: QueueState, moment: Moment, count: int = 1) -> int:
    """Reserve `count` fences, all larger than every earlier one, and return the first."""
    first = max(state.fence + 1, moment.wall_us)
    state.fence = first + count - 1 if count else state.fence
    return first


def wake_waiting(state: QueueState, count: int, moment: Moment) -> list[Wakeup]:
    """Remove up to `count` live consumers from the waiting consumers, the longest waiting first; return wake-ups."""
    wakeups: list[Wakeup] = []
    while len(wakeups) < count and (token := state.first_waiting()) is not None:
        state.remove_waiting(token)
        consumer = state.get_consumer(token)
        if consumer is not None and consumer.expires_us > moment.now_us and consumer.client not in moment.gone:
            wakeups.append(Wakeup(consumer.client, token))
    return wakeups


def publish(state: QueueState, command: Publish, moment: Moment) -> RuleResult:
    """Publish all messages of the command, or none."""
    earlier = state.earlier_result(command.token, moment.wall_us)
    if earlier is not None:
        return RuleResult(Published(earlier), [])
    ids, fresh = _without_duplicates(state, command, moment)
    if command.bound and fresh and state.size + len(fresh) > command.bound:
        return RuleResult(PublishRefused(state.size), [])

    ready = 0
    for new in fresh:
        message = StoredMessage(new.id, new.body, new.headers, new.key, new.lane, moment.wall_us)
        ready += add_message(state, message, new.delay_ms, moment)
        if new.dedup_key:
            state.remember_dedup(new.dedup_key, new.id, moment.wall_us + new.dedup_ms * 1000)
    state.add_to_counter(PUBLISHED, len(fresh))
    state.add_to_counter(DEDUPLICATED, len(ids) - len(fresh))
    state.remember_result(command.token, ids, moment.wall_us + RESULT_MEMORY_MS * 1000)
    return RuleResult(Published(ids), wake_waiting(state, ready, moment))


def _without_duplicates(
    state: QueueState, command: Publish, moment: Moment
) -> tuple[tuple[str, ...], list[NewMessage]]:
    """Return the id for each message, and the messages whose deduplication key was not used before."""
    ids: list[str] = []
    fresh: list[NewMessage] = []
    seen: dict[str, str] = {}
    for new in command.messages:
        known = new.dedup_key and (seen.get(new.dedup_key) or state.dedup_id(new.dedup_key, moment.wall_us))
        if not known:
            fresh.append(new)
            if new.dedup_key:
                seen[new.dedup_key] = new.id
        ids.append(known or new.id)
    return tuple(ids), fresh


def add_message(state: QueueState, message: StoredMessage, delay_ms: int, moment: Moment) -> bool:
    """Add a message to the queue: behind others of its key, delayed or ready; return whether it is ready."""
    if message.key and state.key_head(message.key) is not None:
        state.add_behind(message)
        return False
    return _make_ready(state, message, delay_ms, moment)


def free_key(state: QueueState, message: StoredMessage) -> bool:
    """Make the next message of the key ready, because `message` has left the queue; return whether there is one."""
    following = state.pop_next_of_key(message.key) if message.key else None
    if following is None:
        return False
    state.add_ready(lane_of(following), following)
    return True


def _make_ready(state: QueueState, message: StoredMessage, delay_ms: int, moment: Moment) -> bool:
    """Make a message ready now, or after the delay; return whether it is ready now."""
    if delay_ms > 0:
        state.add_delayed(message, moment.wall_us + delay_ms * 1000)
    else:
        state.add_ready(lane_of(message), message)
    return delay_ms <= 0


def receive(state: QueueState, command: Receive, moment: Moment) -> RuleResult:
    """Deliver ready messages to a consumer; wake other consumers if messages are left."""
    consumer = live_consumer(state, command.token)
    if consumer is None:
        return RuleResult(UNKNOWN_CONSUMER, [])
    if consumer.expires_us <= moment.now_us:  # expired, but not reclaimed: any command is a heartbeat
        state.put_consumer(consumer._replace(expires_us=moment.now_us + consumer.ttl_ms * 1000))
    for message in state.pop_due(moment.wall_us, BATCH_MAX):
        state.add_ready(lane_of(message), message)

    unseen, lost = _compare_known(state, command)
    found = unseen or _take_ready(state, command, moment)
    position = state.add_waiting(command.token) if command.wait and not found else None
    if position is None:
        state.remove_waiting(command.token)
    drain = _should_drain(state, command, moment)
    answer = Received(tuple(map(delivery_of, found)), position, due_ms(state, moment), drain, lost)
    if state.first_waiting() is None:
        return RuleResult(answer, [])
    left = sum(state.ready_count(lane) for lane in command.lanes)
    return RuleResult(answer, wake_waiting(state, left, moment))


def live_consumer(state: QueueState, token: str) -> ConsumerRecord | None:
    """Return the consumer of this session, unless it was declared dead."""
    consumer = state.get_consumer(token)
    return None if consumer is None or consumer.blame else consumer


def delivery_of(entry: QueueEntry) -> Delivery:
    """Return the delivery of an entry, as its consumer sees it."""
    return Delivery(entry.entry, entry.fence, entry.lane == QUARANTINE, entry.message)


def _compare_known(state: QueueState, command: Receive) -> tuple[list[QueueEntry], tuple[str, ...]]:
    """Compare the entries that the consumer knows with the entries that it holds.

    Return the held messages that the consumer does not know because an answer was lost, at most `command.most`; and the
    known entries that it does not hold. A consumer may hold thousands of messages, so read only their entries.
    """
    if command.known_entries is None:
        return _newer_than_seen(state, command), ()
    token, known, limit = command.token, set(command.known_entries), len(command.known_entries) + BATCH_MAX
    entries = state.held_entries(token, limit)
    incomplete, held = len(entries) == limit, set(entries)
    lost = (
        each for each in command.known_entries if each not in held and not (incomplete and state.find_held(token, each))
    )
    found = (state.find_held(token, each) for each in [each for each in entries if each not in known][: command.most])
    return [each for each in found if each is not None], tuple(lost)


def _newer_than_seen(state: QueueState, command: Receive) -> list[QueueEntry]:
    """Return the held messages with a larger fence than the consumer has seen, the smallest fence first."""
    seen = command.seen_fence
    if seen < 0 or not any(each.fence > seen for each in state.newest_held(command.token, 1)):
        return []
    entries = state.newest_held(command.token, state.held_counts(command.token)[0])
    newer = [each for each in entries if each.fence > seen]
    return newer[::-1][: command.most]


def _take_ready(state: QueueState, command: Receive, moment: Moment) -> list[QueueEntry]:
    """Deliver ready messages. Messages in quarantine come alone, to a consumer that holds no new message."""
    fence, most = next_fence(state, moment, 0), command.most
    found: list[QueueEntry] = []
    if command.quarantine_max and most:
        count = min(command.quarantine_max, most)
        found = state.deliver_ready(QUARANTINE, count, command.token, fence, moment.now_us)
    if found:
        state.drain_token, most = "", 0
    elif command.fair_share:
        most = min(most, _fair_share(state, command))
    for lane in command.lanes:
        if len(found) < most:
            found += state.deliver_ready(lane, most - len(found), command.token, fence + len(found), moment.now_us)
    state.add_to_counter(RECEIVED, len(found))
    if found:
        next_fence(state, moment, len(found))
    return found


def _fair_share(state: QueueState, command: Receive) -> int:
    """Return an equal share of the ready messages, at most an equal share of all messages, but at least one.

    Without the first bound, a fast consumer would get most messages. Without the minimum of one, messages would stay
    ready for ever if the other consumers receive no more.
    """
    own, held = state.held_counts(command.token)
    ready = sum(state.ready_count(lane) for lane in dict.fromkeys(command.lanes))
    return max(1, min(-(-ready // state.consumer_count), -(-(ready + held) // state.consumer_count) - own))


def _should_drain(state: QueueState, command: Receive, moment: Moment) -> bool:
    """Return whether to ask this consumer to drain for a message in quarantine. Only one consumer drains at a time."""
    if not state.ready_count(QUARANTINE):
        return False
    if state.drain_token not in ("", command.token) and state.drain_until_us > moment.now_us:
        return False
    if state.drain_token != command.token or state.drain_until_us <= moment.now_us:
        state.drain_token, state.drain_until_us = command.token, moment.now_us + DRAIN_US
    return True


def due_ms(state: QueueState, moment: Moment) -> int:
    """Return the time until the next delay ends, rounded up, so that a receive then finds the message; 0 if none."""
    due_us = state.next_due_us()
    return max(1, -(-(due_us - moment.wall_us) // 1000)) if due_us else 0


def record_outcomes(state: QueueState, command: RecordOutcomes, moment: Moment) -> RuleResult:
    """Record each outcome whose message this consumer holds; answer the other entries as lost."""
    consumer = live_consumer(state, command.token)
    lost: list[str] = []
    counts: dict[str, int] = {}
    ready = 0
    for outcome in command.outcomes:
        entry = None if consumer is None else state.find_held(command.token, outcome.entry)
        if consumer is None or entry is None:
            lost.append(outcome.entry)
            continue
        counts[outcome.kind] = counts.get(outcome.kind, 0) + 1
        if outcome.kind != VERIFY:
            state.remove_held(command.token, outcome.entry)
            ready += _apply_outcome(state, consumer, entry, outcome, moment)
    for kind, count in counts.items():
        if kind != VERIFY:
            state.add_to_counter(_COUNTERS[kind], count)
    if lost and (not command.resent or consumer is None):  # no other client takes a message from a live consumer
        state.add_to_counter(LOST, len(lost))
    if REJECT in counts:
        trim_dead_letters(state, command.dead_max)
    return RuleResult(OutcomesRecorded(tuple(lost)), wake_waiting(state, ready, moment))


_COUNTERS = {ACK: ACKED, RETRY: RETRIED, RELEASE: RELEASED, REJECT: DEAD_LETTERED}


def _apply_outcome(
    state: QueueState, consumer: ConsumerRecord, entry: QueueEntry, outcome: MessageOutcome, moment: Moment
) -> bool:
    """Ack, release, retry or dead-letter a message; return whether this or the next message of its key is ready now.

    A retry redelivers the message after the outcome's delay.
    """
    if outcome.kind == ACK:
        return free_key(state, entry.message)
    if outcome.kind == RELEASE:
        return _make_ready(state, entry.message, outcome.delay_ms, moment)
    # The consumer survived the message, so it does not belong in quarantine.
    tried = with_failure(entry.message, consumer, outcome.error or outcome.reason)._replace(crashes=0)
    if outcome.kind == RETRY:
        return _make_ready(state, tried, outcome.delay_ms, moment)
    state.add_dead_letter(StoredDeadLetter(outcome.reason, moment.wall_us, tried))
    return free_key(state, tried)


def with_failure(
    message: StoredMessage, consumer: ConsumerRecord, error: str, *, attempts: int = 1, crashes: int = 0
) -> StoredMessage:
    """Return the message with the failure of this consumer in its record."""
    return message._replace(
        attempts=message.attempts + attempts,
        crashes=message.crashes + crashes,
        first_consumer=message.first_consumer or consumer.label,
        last_consumer=consumer.label,
        last_error=error,
    )


def trim_dead_letters(state: QueueState, most: int) -> None:
    """Drop the oldest dead letters beyond `most`, and count them; 0 keeps all."""
    if most:
        state.add_to_counter(EVICTED, state.evict_dead_letters(most))


QueueRule = Callable[[QueueState, Any, Moment], RuleResult]
