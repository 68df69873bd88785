"""Rules for consumer sessions: heartbeats, expiry, reclaim, and take-over.

A consumer's session is a lease in its queue. While the session lasts, no other consumer receives its messages. A
consumer is dead if its session expired by the engine's clock and no heartbeat came within a grace after that. The
engine then *reclaims* its messages: they become ready again, and other consumers receive them. A late heartbeat still
counts if it arrives before the reclaim.

One check serves all clients: the engine does not repeat it before its interval has passed. A check that comes much too
late proves nothing about the consumers, because the engine itself may have been unavailable. The engine postpones such
a check: every consumer gets time for a heartbeat first.

A take-over of one key does not wait for the grace. A consumer whose session has expired knows that by its own clock,
and no longer trusts its messages. So the engine gives the message to the consumer that asks, and declares the previous
consumer dead. The exception is again an engine that may have been unavailable: then the previous consumer has the
postponed time.
"""

from __future__ import annotations

from holdfast.commands import Granted, Released, Renewed
from holdfast.commands.queue import (
    BATCH_MAX,
    COSTLY_BATCH_MAX,
    DEAD,
    DELAYED,
    HELD,
    QUARANTINE,
    ConsumerHeartbeat,
    Join,
    KeysHeld,
    Leave,
    LeaveUnfinished,
    ListKeys,
    NotTakenOver,
    Received,
    Reclaimed,
    ReclaimExpired,
    StoredDeadLetter,
    StoredMessage,
    TakeOver,
)
from holdfast.rules.lease_record import Moment
from holdfast.rules.queue.messages import (
    UNKNOWN_CONSUMER,
    delivery_of,
    due_ms,
    free_key,
    live_consumer,
    next_fence,
    trim_dead_letters,
    wake_waiting,
    with_failure,
)
from holdfast.rules.queue.state import (
    ATTEMPTS_USED_UP,
    BLAME_ONE,
    BLAME_UNCLEAR,
    CONSUMER_DIED,
    CRASHED,
    DEAD_LETTERED,
    RECEIVED,
    RELEASED,
    ConsumerRecord,
    KeyHead,
    QueueEntry,
    QueueState,
    lane_of,
)
from holdfast.rules.result import RuleResult

# A check that is this late, and later than two intervals, is too late to declare a consumer dead.
CHECK_LATE_US = 1_000_000
# The shortest time between two checks.
CHECK_PAUSE_US = 100_000
# How many sessions a check shortens at most after the clock went back.
SHORTENED_MAX = 1000
NEVER_US = 2**62


def join(state: QueueState, command: Join, moment: Moment) -> RuleResult:
    """Start a consumer session, or restart the ttl of the same one; refuse a consumer that was declared dead."""
    expires_us = moment.now_us + command.ttl_ms * 1000
    before = state.get_consumer(command.token)
    if before is not None and before.blame:  # a late copy of the command: the reclaim of this session has begun
        return RuleResult(UNKNOWN_CONSUMER, [])
    if before is not None:
        state.put_consumer(before._replace(ttl_ms=command.ttl_ms, expires_us=expires_us))
        return RuleResult(Granted(before.fence), [])

    fence = next_fence(state, moment)
    consumer = ConsumerRecord(
        command.token,
        moment.client,
        command.holder,
        command.label,
        fence,
        command.ttl_ms,
        moment.now_us,
        expires_us,
        keeps_messages=command.keeps_messages,
    )
    state.put_consumer(consumer)
    return RuleResult(Granted(fence), [])


def heartbeat(state: QueueState, command: ConsumerHeartbeat, moment: Moment) -> RuleResult:
    """Move the deadline of a consumer session to a ttl from now, even if the heartbeat is late.

    Without a heartbeat the session expires, and other consumers receive the consumer's messages.
    """
    consumer = live_consumer(state, command.token)
    if consumer is None:
        return RuleResult(UNKNOWN_CONSUMER, [])

    state.put_consumer(consumer._replace(ttl_ms=command.ttl_ms, expires_us=moment.now_us + command.ttl_ms * 1000))
    return RuleResult(Renewed(), [])


def leave(state: QueueState, command: Leave, moment: Moment) -> RuleResult:
    """End a session and requeue its messages, at most `BATCH_MAX` in one step; no attempt is used."""
    consumer = live_consumer(state, command.token)
    if consumer is None:
        return RuleResult(UNKNOWN_CONSUMER, [])

    entries = state.list_held(command.token, BATCH_MAX + 1)
    for each in entries[:BATCH_MAX]:
        state.remove_held(command.token, each.entry)
        state.add_ready(lane_of(each.message), each.message)
    requeued, finished = min(len(entries), BATCH_MAX), len(entries) <= BATCH_MAX
    if finished:
        state.remove_consumer(command.token)
    else:  # the consumer sends no more heartbeats, so each step of the leave counts as one
        state.put_consumer(consumer._replace(expires_us=moment.now_us + consumer.ttl_ms * 1000))
        state.remove_waiting(command.token)
    state.add_to_counter(RELEASED, requeued)
    return RuleResult(Released() if finished else LeaveUnfinished(), wake_waiting(state, requeued, moment))


def reclaim_expired(state: QueueState, command: ReclaimExpired, moment: Moment) -> RuleResult:
    """Reclaim the messages of dead consumers, so that others receive them, if a check is due.

    A consumer is dead if its session expired more than `grace_ms` ago. If the engine has proof that a client died
    (`moment.gone`), it reclaims at once. After a long pause, or after the clock went back, the engine postpones the
    check by `postpone_ms`: if the engine was unavailable, a redelivery would come too early.
    """
    now_us, interval_us, grace_us = moment.now_us, command.interval_ms * 1000, command.grace_ms * 1000
    early = state.checked_us <= now_us < state.next_check_us
    gone = moment.gone & state.watched_clients()
    if early and not gone:
        return RuleResult(Reclaimed(False, False, 0, 0, 0, _ms(state.next_check_us - now_us)), [])

    if now_us < state.checked_us:
        _shorten_sessions(state, now_us)
    late_us = now_us - state.next_check_us
    clock_went_back = now_us < state.checked_us
    postponed = bool(state.checked_us) and (clock_went_back or late_us > max(2 * interval_us, CHECK_LATE_US))
    by_us = -1 if early or postponed else now_us - grace_us
    consumers, requeued, dead, ready, more = _reclaim(state, command, moment, by_us, gone)
    if postponed:
        state.next_check_us = now_us + command.postpone_ms * 1000
    elif not early:
        next_us = state.next_expiry_us()
        soon_us = max(now_us + CHECK_PAUSE_US, next_us + grace_us) if next_us else now_us + interval_us
        state.next_check_us = now_us if more else min(now_us + interval_us, soon_us)
    state.checked_us = now_us
    state.add_to_counter(CRASHED, requeued + dead)
    state.add_to_counter(DEAD_LETTERED, dead)
    if dead:
        trim_dead_letters(state, command.dead_max)
    next_ms = 1 if more else _ms(state.next_check_us - now_us)
    answer = Reclaimed(True, postponed, consumers, requeued, dead, next_ms)
    return RuleResult(answer, wake_waiting(state, ready, moment))


def _shorten_sessions(state: QueueState, now_us: int) -> None:
    """Limit every session to its ttl from now, because the clock went back: dead consumers would expire too late."""
    for each in state.expired_consumers(NEVER_US, frozenset(), SHORTENED_MAX):
        if each.expires_us > now_us + each.ttl_ms * 1000:
            state.put_consumer(each._replace(expires_us=now_us + each.ttl_ms * 1000))


def _reclaim(
    state: QueueState, command: ReclaimExpired, moment: Moment, by_us: int, gone: frozenset[str]
) -> tuple[int, int, int, int, bool]:
    """Requeue or dead-letter the messages of the consumers that expired by `by_us`, and of the clients `gone`.

    Return how many consumers ended, how many messages were requeued, how many became dead letters, how many messages
    became ready (including messages behind a dead letter), and whether there is more to do. A consumer costs as much as
    a message, so both count against the size of the step.
    """
    consumers = requeued = dead = followed = 0
    room = COSTLY_BATCH_MAX
    expired = state.expired_consumers(by_us, gone, room)
    for each in expired:
        if not room:
            return consumers, requeued, dead, requeued + followed, True
        room -= 1
        consumer = _declare_dead(state, each)
        entries = state.list_held(consumer.token, room + 1)
        for entry in entries[:room]:
            state.remove_held(consumer.token, entry.entry)
            message = _after_consumer_death(state, command.attempts_max, consumer, entry, moment)
            if message is not None:
                state.add_ready(lane_of(message), message)
                requeued += 1
            else:
                followed += free_key(state, entry.message)
                dead += 1
        if len(entries) > room:
            state.put_consumer(consumer)
            return consumers, requeued, dead, requeued + followed, True
        room -= len(entries)
        state.remove_consumer(consumer.token)
        consumers += 1
    return consumers, requeued, dead, requeued + followed, len(expired) == COSTLY_BATCH_MAX


def _declare_dead(state: QueueState, consumer: ConsumerRecord) -> ConsumerRecord:
    """Return the record of a dead consumer, with the blame for its death.

    Decide the blame from the messages that the consumer holds now, because the reclaim removes them step by step.
    """
    if consumer.blame:
        return consumer
    new = [entry for entry in state.newest_held(consumer.token, 2) if entry.received_us >= consumer.blame_from_us]
    return consumer._replace(blame=BLAME_ONE if len(new) == 1 else BLAME_UNCLEAR)


def _after_consumer_death(
    state: QueueState, attempts_max: int, consumer: ConsumerRecord, entry: QueueEntry, moment: Moment
) -> StoredMessage | None:
    """Return the message to requeue after its consumer died, or `None` if it became a dead letter.

    A message gets the blame, and loses an attempt, if it was the consumer's only message in the blame window; never if
    it is older. A message in quarantine gets the blame too, because it was delivered alone; but a consumer that keeps
    messages may have received several from quarantine, and then the cause is unclear.
    """
    if entry.received_us < consumer.blame_from_us:
        return with_failure(entry.message, consumer, CONSUMER_DIED, attempts=0)._replace(crashes=0)
    if consumer.blame != BLAME_ONE and (consumer.keeps_messages or entry.lane != QUARANTINE):
        return with_failure(entry.message, consumer, CONSUMER_DIED, attempts=0, crashes=1)
    message = with_failure(entry.message, consumer, CONSUMER_DIED)
    if message.attempts < attempts_max:
        return message
    state.add_dead_letter(StoredDeadLetter(ATTEMPTS_USED_UP, moment.wall_us, message))
    return None


def take_over(state: QueueState, command: TakeOver, moment: Moment) -> RuleResult:
    """Redeliver the first message of a key to this consumer, without a grace, if its holder's session has expired."""
    if live_consumer(state, command.token) is None:
        return RuleResult(UNKNOWN_CONSUMER, [])
    head = state.key_head(command.key)
    if head is None or head.place == DELAYED:
        return RuleResult(NotTakenOver("" if head is None else DELAYED), [])
    if head.token == command.token:  # a second copy of the command
        return RuleResult(Received((delivery_of(head.entry),), None, due_ms(state, moment)), [])

    lane, message = head.entry.lane, head.entry.message
    if head.place == HELD:
        holder = state.get_consumer(head.token)
        if holder is not None and (_is_alive(holder, moment) or _may_be_alive(state, holder, moment)):
            return RuleResult(NotTakenOver(HELD, holder.label, head.entry.fence), [])
        reclaimed = _reclaim_head(state, command, holder, head, moment)
        if reclaimed is None:
            followed = free_key(state, message)
            trim_dead_letters(state, command.dead_max)
            return RuleResult(NotTakenOver(DEAD), wake_waiting(state, int(followed), moment))
        lane, message = lane_of(reclaimed), reclaimed
    else:
        state.remove_ready(lane, head.entry.entry)
    fence = next_fence(state, moment)
    state.add_to_counter(RECEIVED, 1)
    entry = state.deliver(lane, message, command.token, fence, moment.now_us)
    state.remove_waiting(command.token)
    return RuleResult(Received((delivery_of(entry),), None, due_ms(state, moment)), [])


def _is_alive(consumer: ConsumerRecord, moment: Moment) -> bool:
    """Return whether the session has not expired, and nothing proves that its client died."""
    return not consumer.blame and consumer.expires_us > moment.now_us and consumer.client not in moment.gone


def _may_be_alive(state: QueueState, consumer: ConsumerRecord, moment: Moment) -> bool:
    """Return whether heartbeats may be missing because the engine was unavailable: the last check is late or postponed.

    A client checks every sixth of the ttl of its consumers, and a postponed check comes a whole ttl later.
    """
    if not state.checked_us or consumer.blame or consumer.client in moment.gone:
        return False
    now_us, ttl_us = moment.now_us, consumer.ttl_ms * 1000
    if now_us < state.next_check_us:
        return now_us < state.checked_us or state.next_check_us - state.checked_us >= ttl_us // 2
    return now_us - state.next_check_us > max(ttl_us // 3, CHECK_LATE_US)


def _reclaim_head(
    state: QueueState, command: TakeOver, holder: ConsumerRecord | None, head: KeyHead, moment: Moment
) -> StoredMessage | None:
    """Declare the holder dead and take the message from it; return `None` if the message became a dead letter."""
    state.add_to_counter(CRASHED, 1)
    if holder is None:
        state.remove_held(head.token, head.entry.entry)
        return head.entry.message
    dead = _declare_dead(state, holder)
    state.remove_held(head.token, head.entry.entry)
    state.put_consumer(dead)
    message = _after_consumer_death(state, command.attempts_max, dead, head.entry, moment)
    state.add_to_counter(DEAD_LETTERED, int(message is None))
    return message


def list_keys(state: QueueState, command: ListKeys, moment: Moment) -> RuleResult:  # noqa: ARG001 - as all rules
    """List the keys of a consumer's messages, for owners that got the event of its expiry."""
    held = state.list_held(command.token, command.limit)
    keys = tuple(each.message.key for each in held if each.message.key)
    return RuleResult(KeysHeld(keys, state.held_counts(command.token)[0]), [])


def _ms(span_us: int) -> int:
    return max(1, -(-span_us // 1000))
