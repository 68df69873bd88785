"""The law of a lease: who may hold, which fence comes next, who is next in line.

Pure functions: a record and a command go in, the next record and the answer come out. No clock, no input, no output.
Every function first brings the record to the present (`advance`), then refuses, then grants; only what the
holder says of its own right needs no more than its own lines. An engine loads the
record, calls the rule, stores what changed and rings the waiter that the step names.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.commands import (
    Acquire,
    Answer,
    Break,
    Busy,
    Done,
    Granted,
    HeartbeatReceived,
    LeaseInfo,
    LeaseParty,
    NotHeld,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Show,
    Undo,
    WaiterHeartbeat,
    WakeHolder,
)
from holdfast.rules.lease_record import NO_TOMBSTONES, HolderRecord, Moment, Record, Tombstone, Waiter

OFFER_MAX_US = 1_000_000
TOMBSTONE_US = 60_000_000
# Why a token does not hold the lease. The Lua scripts take these constants too.
EXPIRED, RELEASED, UNDONE, BROKEN = "expired", "released", "undone", "broken"
NO_SUCH_LEASE = "no such lease"


class Step(NamedTuple):
    """The record after the command, the answer, and the waiter to ring (if the right was offered to one)."""

    record: Record
    answer: Answer
    wake: HolderRecord | None = None


def next_fence(record: Record, moment: Moment) -> int:
    """Larger than every fence before it, and larger than any that lost data could have held."""
    return max(record.fence + 1, moment.wall_us)


def advance(record: Record, moment: Moment) -> Record:
    """Bring the record to the present: what lapsed is dropped, a free right goes to the first live waiter."""
    if 0 < record.tombstones.ends_us <= moment.now_us:
        record = record._replace(tombstones=NO_TOMBSTONES)
    if record.waiters.clients and (moment.gone or moment.silent):
        fallen = record.waiters.clients.keys() & (moment.gone | moment.silent)
        if fallen:
            record = record._replace(waiters=record.waiters.without_clients(fallen))
    holder = record.holder
    if holder is not None and (holder.expires_us <= moment.now_us or holder.client in moment.gone):
        record = record._replace(holder=None)
        if holder.offered and holder.client not in moment.gone and holder.client not in moment.silent:
            # It may only not have heard. Whoever lives keeps a place in the queue: the last one.
            late = Waiter(holder.token, holder.client, holder.holder, holder.ttl_ms, moment.now_us)
            record = record._replace(waiters=record.waiters.joined(late))

    if record.holder is None and record.waiters.clients:
        first = record.waiters.first()
        assert first is not None
        return offer(record, first, moment)
    return record


def offer(record: Record, waiter: Waiter, moment: Moment) -> Record:
    """The right goes to this waiter for a moment, under its own fence; its next acquire confirms it."""
    fence = next_fence(record, moment)
    lasts_us = min(waiter.ttl_ms * 1000, OFFER_MAX_US)
    holder = HolderRecord(
        waiter.token,
        waiter.client,
        waiter.holder,
        fence,
        waiter.ttl_ms,
        moment.now_us,
        moment.now_us + lasts_us,
        offered=True,
    )
    rest = record.waiters.without(waiter.token)
    return record._replace(fence=fence, holder=holder, waiters=rest, touched_us=moment.now_us)


def acquire(record: Record, command: Acquire, moment: Moment) -> Step:
    """Grant, confirm, queue or refuse: in that one step nobody can come between."""
    if command.token == record.last:
        return Step(record, Refused(RELEASED))
    before = record
    if not _holds(record.holder, command.token, moment):
        ended = record.tombstones.find(command.token, moment.now_us)
        if ended is not None:
            return Step(record, Refused(ended.why))
        record = advance(record, moment)
    holder = record.holder
    if holder is not None and holder.token != command.token:
        return _wait(before, record, holder, command, moment)

    fence = next_fence(record, moment) if holder is None else holder.fence
    granted = HolderRecord(
        command.token,
        moment.client,
        command.holder,
        fence,
        command.ttl_ms,
        moment.now_us if holder is None or holder.offered else holder.since_us,
        moment.now_us + command.ttl_ms * 1000,
        offered=False,
    )
    return Step(
        Record(fence, granted, record.waiters, record.tombstones, record.last, moment.now_us),
        Granted(fence),
    )


def _wait(before: Record, record: Record, holder: HolderRecord, command: Acquire, moment: Moment) -> Step:
    place = record.waiters.place(command.token)
    if command.wait and place is None:
        waiter = Waiter(command.token, moment.client, command.holder, command.ttl_ms, moment.now_us)
        place = len(record.waiters)
        record = record._replace(waiters=record.waiters.joined(waiter), touched_us=moment.now_us)
    elif not command.wait and place is not None:
        rest = record.waiters.without(command.token)
        place, record = None, record._replace(waiters=rest, touched_us=moment.now_us)

    busy = Busy(holder.holder, holder.fence, _remaining_ms(holder, moment), place)
    return Step(record, busy, _woken(before, record))


def renew(record: Record, command: Renew, moment: Moment) -> Step:
    """Restart the ttl of a full lease; a lapsed one stays lapsed, even if nobody took it."""
    holder = record.holder
    if holder is None or not _holds(holder, command.token, moment) or holder.offered:
        before, record = record, advance(record, moment)
        return Step(record, _not_held(record, command.token, moment), _woken(before, record))

    expires_us = moment.now_us + command.ttl_ms * 1000
    renewed = holder._replace(ttl_ms=command.ttl_ms, expires_us=expires_us)
    return Step(record._replace(holder=renewed, touched_us=moment.now_us), Renewed())


def release(record: Record, command: Release, moment: Moment) -> Step:
    """Free the lease and offer it on, in one step; the same token may say so twice."""
    before, record = record, advance(record, moment)
    holder = record.holder
    if holder is None or holder.token != command.token:
        again = command.token == record.last
        answer: Answer = Released() if again else _not_held(record, command.token, moment)
        return Step(record, answer, _woken(before, record))

    heir = record.waiters.find(command.to) if command.to else None
    record = Record(record.fence, None, record.waiters, record.tombstones, command.token, moment.now_us)
    if command.tombstone:
        record = _with_tombstone(record, Tombstone(command.token, moment.now_us + TOMBSTONE_US, RELEASED), moment)
    record = advance(record, moment) if heir is None else offer(record, heir, moment)
    return Step(record, Released(), _woken(before, record))


def undo(record: Record, command: Undo, moment: Moment) -> Step:
    """End a token that nobody owns, wherever it stands, and refuse what still comes under it."""
    before, record = record, advance(record, moment)
    if record.tombstones.find(command.token, moment.now_us) is None:
        record = _with_tombstone(record, Tombstone(command.token, moment.now_us + TOMBSTONE_US, UNDONE), moment)
    rest = record.waiters.without(command.token)
    held = record.holder is not None and record.holder.token == command.token
    record = record._replace(waiters=rest, holder=None if held else record.holder, touched_us=moment.now_us)
    record = advance(record, moment)
    return Step(record, Done(), _woken(before, record))


def break_(record: Record, command: Break, moment: Moment) -> Step:
    """End the lease under this fence by force: the fence grows, the holder will be told why."""
    before, record = record, advance(record, moment)
    holder = record.holder
    if holder is None or holder.fence != command.fence:
        return Step(record, NotHeld(NO_SUCH_LEASE), _woken(before, record))

    until_us = moment.now_us + max(TOMBSTONE_US, 2 * holder.ttl_ms * 1000)
    record = _with_tombstone(record, Tombstone(holder.token, until_us, BROKEN, command.reason), moment)
    record = record._replace(holder=None, fence=next_fence(record, moment), touched_us=moment.now_us)
    record = advance(record, moment)
    return Step(record, Released(), _woken(before, record))


def waiter_heartbeat(record: Record, _command: WaiterHeartbeat, moment: Moment) -> Step:
    """A client says that it lives. An offer that was made but not heard is rung again.

    The answer tells when the present lease ends, so that the client looks again just then: every client with a
    waiter watches the holder, whatever place its waiters have.
    """
    before, record = record, advance(record, moment)
    holder = record.holder
    if holder is None:
        return Step(record, HeartbeatReceived(0))

    unheard = holder if holder.offered and holder.client == moment.client else None
    wake = _woken(before, record) or unheard
    answer = HeartbeatReceived(_remaining_ms(holder, moment), unheard.token if unheard else "")
    return Step(record._replace(touched_us=moment.now_us), answer, wake)


def show(record: Record, _command: Show, moment: Moment) -> Step:
    """Who holds and who waits, without changing anything."""
    now = advance(record, moment)
    held = now.holder

    def seat(token: str, holder: str, fence: int, since_us: int, until_us: int) -> LeaseParty:
        since_ms = (moment.now_us - since_us) // 1000
        return LeaseParty(holder, token, fence, since_ms, max(0, until_us - moment.now_us) // 1000)

    holder = None if held is None else seat(held.token, held.holder, held.fence, held.since_us, held.expires_us)
    waiters = tuple(seat(waiter.token, waiter.holder, 0, waiter.since_us, 0) for waiter in now.waiters)
    return Step(record, LeaseInfo(now.fence, holder, held is not None and held.offered, waiters))


def wake_holder(record: Record, _command: WakeHolder, moment: Moment) -> Step:
    """Wake whoever holds. Nothing is changed, and whoever only has an offer is woken by that."""
    holder = advance(record, moment).holder
    if holder is None or holder.offered:
        return Step(record, NotHeld("no owner"))
    return Step(record, Done(), holder)


def forget_at_us(record: Record, memory_us: int) -> int:
    """When nothing of this name needs to be remembered any more, unless it is used again."""
    held_us = 0 if record.holder is None else record.holder.expires_us
    return max(record.touched_us, record.tombstones.ends_us, held_us) + memory_us


def _holds(holder: HolderRecord | None, token: str, moment: Moment) -> bool:
    """Whether this token has the right or the offer just now: then nothing else needs to be brought to the present."""
    if holder is None or holder.token != token or holder.expires_us <= moment.now_us:
        return False
    return holder.client not in moment.gone


def _with_tombstone(record: Record, tombstone: Tombstone, moment: Moment) -> Record:
    return record._replace(tombstones=record.tombstones.with_tombstone(tombstone, moment.now_us))


def _not_held(record: Record, token: str, moment: Moment) -> NotHeld:
    ended = record.tombstones.find(token, moment.now_us)
    return NotHeld(EXPIRED) if ended is None else NotHeld(ended.why, ended.detail)


def _remaining_ms(holder: HolderRecord, moment: Moment) -> int:
    """Rounded up: whoever asks again then finds the lease ended."""
    return -(-(holder.expires_us - moment.now_us) // 1000)


def _woken(before: Record, after: Record) -> HolderRecord | None:
    """The waiter to whom this step offered the right, if it did."""
    holder = after.holder
    if holder is None or not holder.offered:
        return None
    return None if before.holder is not None and before.holder.fence == holder.fence else holder
