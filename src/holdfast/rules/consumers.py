"""The law of consumers: who lives, who is taken for dead, and what becomes of what the dead had.

A consumer's life is a lease in its queue. Whoever has ended by the engine's clock and was not heard of for a grace is
dead; but whoever is heard of before somebody looks has lost nothing. One look serves everybody: it is not repeated
before it is time. A look that comes much too late proves nothing about consumers, because the engine may have been
away: everybody gets time to be heard of first.
"""

from __future__ import annotations

from holdfast.commands import Granted, Released, Renewed
from holdfast.commands.queues import AT_ONCE, SUSPECTS, Beat, DeadLetter, Join, Leave, Reap, Reaped
from holdfast.rules.depot import Depot, Entry, Member, lane_of
from holdfast.rules.pool import Dealt
from holdfast.rules.queue import SPENT, UNKNOWN_CONSUMER, failed, make_room, next_fence, ring
from holdfast.rules.record import Moment

# A look that is so late, and two intervals, is too late to say who is dead.
LATE_US = 1_000_000
# Between two looks there is at least a breath.
BREATH_US = 100_000
DIED_WITH_IT = "its consumer died"


def join(depot: Depot, command: Join, moment: Moment) -> Dealt:
    """One more consumer, or the same one again."""
    ends_us = moment.now_us + command.ttl_ms * 1000
    before = depot.member(command.token)
    if before is not None:
        depot.put_member(before._replace(ttl_ms=command.ttl_ms, ends_us=ends_us))
        return Dealt(Granted(before.fence), [])

    fence = next_fence(depot, moment)
    who = (command.token, moment.client, command.owner, command.label, fence)
    depot.put_member(Member(*who, command.ttl_ms, moment.now_us, ends_us))
    return Dealt(Granted(fence), [])


def beat(depot: Depot, command: Beat, moment: Moment) -> Dealt:
    """It lives, for so long from now; also if that comes late."""
    member = depot.member(command.token)
    if member is None:
        return Dealt(UNKNOWN_CONSUMER, [])

    depot.put_member(member._replace(ttl_ms=command.ttl_ms, ends_us=moment.now_us + command.ttl_ms * 1000))
    return Dealt(Renewed(), [])


def leave(depot: Depot, command: Leave, moment: Moment) -> Dealt:
    """What it has is ready for others, as if it had never been taken."""
    if depot.member(command.token) is None:
        return Dealt(UNKNOWN_CONSUMER, [])

    given = 0
    while entries := depot.held(command.token, AT_ONCE):
        for each in entries:
            depot.drop(command.token, each.entry)
            depot.append(lane_of(each.message), each.message)
        given += len(entries)
    depot.drop_member(command.token)
    depot.count("released", given)
    return Dealt(Released(), ring(depot, given, moment))


def reap(depot: Depot, command: Reap, moment: Moment) -> Dealt:
    """Look, if it is time. Whoever is proven dead is found at any time."""
    now_us, interval_us, grace_us = moment.now_us, command.interval_ms * 1000, command.grace_ms * 1000
    early = depot.looked_us <= now_us < depot.look_us
    gone = moment.gone & depot.watched()
    if early and not gone:
        return Dealt(Reaped(False, False, 0, 0, 0, _ms(depot.look_us - now_us)), [])

    late_us = now_us - depot.look_us
    amnesty = bool(depot.looked_us) and (now_us < depot.looked_us or late_us > max(2 * interval_us, LATE_US))
    by_us = -1 if early or amnesty else now_us - grace_us
    ended, moved, died, more = _bring_back(depot, command, moment, by_us, gone)
    if amnesty:
        depot.look_us = now_us + command.amnesty_ms * 1000
    elif not early:
        next_us = depot.next_end_us()
        soon_us = max(now_us + BREATH_US, next_us + grace_us) if next_us else now_us + interval_us
        depot.look_us = now_us if more else min(now_us + interval_us, soon_us)
    depot.looked_us = now_us
    depot.count("crashed", moved + died)
    depot.count("died", died)
    if died:
        make_room(depot, command.dead_max)
    answer = Reaped(True, amnesty, ended, moved, died, 1 if more else _ms(depot.look_us - now_us))
    return Dealt(answer, ring(depot, moved, moment))


def _bring_back(
    depot: Depot, command: Reap, moment: Moment, by_us: int, gone: frozenset[str]
) -> tuple[int, int, int, bool]:
    """How many consumers have ended, how many messages are ready again and how many are dead; is there more to do?"""
    ended = moved = died = 0
    room = AT_ONCE
    late = depot.late(by_us, gone, AT_ONCE)
    for member in late:
        entries = depot.held(member.token, room + 1)
        alone = len(entries) == 1 and not member.crowd
        for each in entries[:room]:
            depot.drop(member.token, each.entry)
            if _goes_on(depot, command, member, each, moment, alone=alone):
                moved += 1
            else:
                died += 1
        if len(entries) > room:
            depot.put_member(member._replace(crowd=True))
            return ended, moved, died, True
        room -= len(entries)
        depot.drop_member(member.token)
        ended += 1
    return ended, moved, died, len(late) == AT_ONCE


def _goes_on(depot: Depot, command: Reap, member: Member, entry: Entry, moment: Moment, *, alone: bool) -> bool:
    """Ready again, or dead. A message is to blame for a death only if nothing else was there."""
    if not alone and entry.lane != SUSPECTS:
        message = failed(entry.message, member, DIED_WITH_IT, attempts=0, crashes=1)
    else:
        message = failed(entry.message, member, DIED_WITH_IT)
        if message.attempts >= command.attempts_max:
            depot.bury(DeadLetter(SPENT, moment.wall_us, message))
            return False
    depot.append(lane_of(message), message)
    return True


def _ms(span_us: int) -> int:
    return max(1, -(-span_us // 1000))
