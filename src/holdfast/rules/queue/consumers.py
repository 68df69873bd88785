"""The law of consumers: who lives, who is taken for dead, and what becomes of what the dead had.

A consumer's life is a lease in its queue. Whoever has ended by the engine's clock and was not heard of for a grace is
dead; but whoever is heard of before somebody looks has lost nothing. One look serves everybody: it is not repeated
before it is time. A look that comes much too late proves nothing about consumers, because the engine may have been
away: everybody gets time to be heard of first.

Whoever asks for one message by its key need not wait for the grace. A consumer whose time has ended vouches for
nothing, and knows that by its own clock: what it had is given to whoever asks, and it is dead from then on. But not
where the engine may have been away: then all are silent, and each has the time of the amnesty.
"""

from __future__ import annotations

from holdfast.commands import Granted, Released, Renewed
from holdfast.commands.queue import (
    ATTEMPTS_USED_UP,
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
    delivered,
    due_ms,
    failed,
    follow,
    living,
    make_room,
    next_fence,
    ring,
)
from holdfast.rules.queue.state import (
    BLAME_ONE,
    BLAME_UNCLEAR,
    ConsumerRecord,
    KeyHead,
    QueueEntry,
    QueueState,
    lane_of,
)
from holdfast.rules.result import RuleResult

# A look that is so late, and two intervals, is too late to say who is dead.
LATE_US = 1_000_000
# Between two looks there is at least a breath.
BREATH_US = 100_000
# Of how many consumers the ends are looked at after the clock went back.
LOOKED_AT = 1000
NEVER_US = 2**62
CONSUMER_DIED = "its consumer died"


def join(state: QueueState, command: Join, moment: Moment) -> RuleResult:
    """One more consumer, or the same one again; but not one that was taken for dead."""
    ends_us = moment.now_us + command.ttl_ms * 1000
    before = state.get_consumer(command.token)
    if before is not None and before.blame:  # a copy that comes late: its messages are being given to others
        return RuleResult(UNKNOWN_CONSUMER, [])
    if before is not None:
        state.put_consumer(before._replace(ttl_ms=command.ttl_ms, ends_us=ends_us))
        return RuleResult(Granted(before.fence), [])

    fence = next_fence(state, moment)
    who = (command.token, moment.client, command.holder, command.label, fence)
    state.put_consumer(ConsumerRecord(*who, command.ttl_ms, moment.now_us, ends_us, keeps_messages=command.keeps_messages))
    return RuleResult(Granted(fence), [])


def beat(state: QueueState, command: ConsumerHeartbeat, moment: Moment) -> RuleResult:
    """It lives, for so long from now; also if that comes late."""
    member = living(state, command.token)
    if member is None:
        return RuleResult(UNKNOWN_CONSUMER, [])

    state.put_consumer(member._replace(ttl_ms=command.ttl_ms, ends_us=moment.now_us + command.ttl_ms * 1000))
    return RuleResult(Renewed(), [])


def leave(state: QueueState, command: Leave, moment: Moment) -> RuleResult:
    """What it has is ready for others, as if it had never been taken; a part at a time."""
    member = living(state, command.token)
    if member is None:
        return RuleResult(UNKNOWN_CONSUMER, [])

    entries = state.list_held(command.token, BATCH_MAX + 1)
    for each in entries[:BATCH_MAX]:
        state.remove_held(command.token, each.entry)
        state.add_ready(lane_of(each.message), each.message)
    given, over = min(len(entries), BATCH_MAX), len(entries) <= BATCH_MAX
    if over:
        state.remove_consumer(command.token)
    else:  # nobody renews it any more, but whoever speaks lives
        state.put_consumer(member._replace(ends_us=moment.now_us + member.ttl_ms * 1000))
        state.remove_waiting(command.token)
    state.add_to_counter("released", given)
    return RuleResult(Released() if over else LeaveUnfinished(), ring(state, given, moment))


def reap(state: QueueState, command: ReclaimExpired, moment: Moment) -> RuleResult:
    """Look, if it is time. Whoever is proven dead is found at any time."""
    now_us, interval_us, grace_us = moment.now_us, command.interval_ms * 1000, command.grace_ms * 1000
    early = state.checked_us <= now_us < state.next_check_us
    gone = moment.gone & state.watched_clients()
    if early and not gone:
        return RuleResult(Reclaimed(False, False, 0, 0, 0, _ms(state.next_check_us - now_us)), [])

    if now_us < state.checked_us:
        _bring_forward(state, now_us)
    late_us = now_us - state.next_check_us
    amnesty = bool(state.checked_us) and (now_us < state.checked_us or late_us > max(2 * interval_us, LATE_US))
    by_us = -1 if early or amnesty else now_us - grace_us
    ended, moved, died, ready, more = _bring_back(state, command, moment, by_us, gone)
    if amnesty:
        state.next_check_us = now_us + command.postpone_ms * 1000
    elif not early:
        next_us = state.next_expiry_us()
        soon_us = max(now_us + BREATH_US, next_us + grace_us) if next_us else now_us + interval_us
        state.next_check_us = now_us if more else min(now_us + interval_us, soon_us)
    state.checked_us = now_us
    state.add_to_counter("crashed", moved + died)
    state.add_to_counter("dead_lettered", died)
    if died:
        make_room(state, command.dead_max)
    answer = Reclaimed(True, amnesty, ended, moved, died, 1 if more else _ms(state.next_check_us - now_us))
    return RuleResult(answer, ring(state, ready, moment))


def _bring_forward(state: QueueState, now_us: int) -> None:
    """The clock went back: nobody's time ends later than its ttl from now, else the dead would live until then."""
    for each in state.expired_consumers(NEVER_US, frozenset(), LOOKED_AT):
        if each.ends_us > now_us + each.ttl_ms * 1000:
            state.put_consumer(each._replace(ends_us=now_us + each.ttl_ms * 1000))


def _bring_back(
    state: QueueState, command: ReclaimExpired, moment: Moment, by_us: int, gone: frozenset[str]
) -> tuple[int, int, int, int, bool]:
    """How many consumers have ended; how many of their messages are to be tried again, and how many are dead.

    Then how many are ready by that, also of those that stood behind a dead one; and whether there is more to do. A
    consumer costs as much as a message, so both count.
    """
    ended = moved = died = followed = 0
    room = COSTLY_BATCH_MAX
    late = state.expired_consumers(by_us, gone, room)
    for each in late:
        if not room:
            return ended, moved, died, moved + followed, True
        room -= 1
        member = _falls(state, each)
        entries = state.list_held(member.token, room + 1)
        for entry in entries[:room]:
            state.remove_held(member.token, entry.entry)
            message = _mourned(state, command.attempts_max, member, entry, moment)
            if message is not None:
                state.add_ready(lane_of(message), message)
                moved += 1
            else:
                followed += follow(state, entry.message)
                died += 1
        if len(entries) > room:
            state.put_consumer(member)
            return ended, moved, died, moved + followed, True
        room -= len(entries)
        state.remove_consumer(member.token)
        ended += 1
    return ended, moved, died, moved + followed, len(late) == COSTLY_BATCH_MAX


def _falls(state: QueueState, member: ConsumerRecord) -> ConsumerRecord:
    """Taken for dead. What it has at this moment says who may be to blame; later, some of that is gone."""
    if member.blame:
        return member
    new = [entry for entry in state.newest_held(member.token, 2) if entry.received_us >= member.probation_us]
    return member._replace(blame=BLAME_ONE if len(new) == 1 else BLAME_UNCLEAR)


def _mourned(
    state: QueueState, attempts_max: int, member: ConsumerRecord, entry: QueueEntry, moment: Moment
) -> StoredMessage | None:
    """The message after its consumer's death; none if that made it a dead letter.

    It is to blame only if nothing else was there, or nothing else that was new; and never if it was not new itself.
    Whoever keeps what it takes may have dared to take several suspects: then nobody knows which of them it was.
    """
    if entry.received_us < member.probation_us:
        return failed(entry.message, member, CONSUMER_DIED, attempts=0)._replace(crashes=0)
    if member.blame != BLAME_ONE and (member.keeps_messages or entry.lane != QUARANTINE):
        return failed(entry.message, member, CONSUMER_DIED, attempts=0, crashes=1)
    message = failed(entry.message, member, CONSUMER_DIED)
    if message.attempts < attempts_max:
        return message
    state.add_dead_letter(StoredDeadLetter(ATTEMPTS_USED_UP, moment.wall_us, message))
    return None


def take_over(state: QueueState, command: TakeOver, moment: Moment) -> RuleResult:
    """The first message of a key, for whoever asks, if nobody can vouch for it."""
    if living(state, command.token) is None:
        return RuleResult(UNKNOWN_CONSUMER, [])
    first = state.key_head(command.key)
    if first is None or first.place == DELAYED:
        return RuleResult(NotTakenOver("" if first is None else DELAYED), [])
    if first.token == command.token:  # asked for before
        return RuleResult(Received((delivered(first.entry),), None, due_ms(state, moment)), [])

    lane, message = first.entry.lane, first.entry.message
    if first.place == HELD:
        holder = state.get_consumer(first.token)
        if holder is not None and (_vouches(holder, moment) or _forgiven(state, holder, moment)):
            return RuleResult(NotTakenOver(HELD, holder.label, first.entry.fence), [])
        bereft = _bereft(state, command, holder, first, moment)
        if bereft is None:
            followed = follow(state, message)
            make_room(state, command.dead_max)
            return RuleResult(NotTakenOver(DEAD), ring(state, int(followed), moment))
        lane, message = lane_of(bereft), bereft
    else:
        state.remove_ready(lane, first.entry.entry)
    fence = next_fence(state, moment)
    state.add_to_counter("received", 1)
    given = state.deliver(lane, message, command.token, fence, moment.now_us)
    state.remove_waiting(command.token)
    return RuleResult(Received((delivered(given),), None, due_ms(state, moment)), [])


def _vouches(member: ConsumerRecord, moment: Moment) -> bool:
    return not member.blame and member.ends_us > moment.now_us and member.client not in moment.gone


def _forgiven(state: QueueState, member: ConsumerRecord, moment: Moment) -> bool:
    """Whether its silence may be that of the engine: nobody has looked for long, or all were given time for that.

    The looks of consumers with such a ttl are a sixth of it apart, and an amnesty lasts for all of it.
    """
    if not state.checked_us or member.blame or member.client in moment.gone:
        return False
    now_us, ttl_us = moment.now_us, member.ttl_ms * 1000
    if now_us < state.next_check_us:
        return now_us < state.checked_us or state.next_check_us - state.checked_us >= ttl_us // 2
    return now_us - state.next_check_us > max(ttl_us // 3, LATE_US)


def _bereft(
    state: QueueState, command: TakeOver, holder: ConsumerRecord | None, first: KeyHead, moment: Moment
) -> StoredMessage | None:
    """What its consumer, which is dead from now on, leaves behind; none if it is a dead letter."""
    state.add_to_counter("crashed", 1)
    if holder is None:
        state.remove_held(first.token, first.entry.entry)
        return first.entry.message
    fallen = _falls(state, holder)
    state.remove_held(first.token, first.entry.entry)
    state.put_consumer(fallen)
    message = _mourned(state, command.attempts_max, fallen, first.entry, moment)
    state.add_to_counter("dead_lettered", int(message is None))
    return message


def list_keys(state: QueueState, command: ListKeys, moment: Moment) -> RuleResult:  # noqa: ARG001 - as all rules
    """For whoever has heard that a consumer has ended."""
    held = state.list_held(command.token, command.limit)
    keys = tuple(each.message.key for each in held if each.message.key)
    return RuleResult(KeysHeld(keys, state.held_counts(command.token)[0]), [])


def _ms(span_us: int) -> int:
    return max(1, -(-span_us // 1000))
