"""The rules of a lease: who may hold it, which fence comes next, and who is next in the waiting line.

Pure functions take a record and a command and return the next record and the answer, without a clock or I/O. Every rule
first applies due expiries (`advance`), then refuses, then grants; a command of the present holder skips the first step.
An engine loads the record, calls the rule, stores the changes, and wakes the waiter that the step names.
"""

from __future__ import annotations

from itertools import islice
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
    Released,
    ReleaseLease,
    Renew,
    Renewed,
    Show,
    Undo,
    WaiterHeartbeat,
    WakeHolder,
)
from holdfast.rules.lease_record import NO_TOMBSTONES, HolderRecord, Line, Moment, Record, Tombstone, Waiter
from holdfast.rules.trust import WATCHERS

OFFER_MAX_US = 1_000_000
TOMBSTONE_US = 60_000_000
# Why a token does not hold the lease. The Lua scripts use these constants too.
EXPIRED, RELEASED, UNDONE, BROKEN = "expired", "released", "undone", "broken"
NO_SUCH_LEASE = "no such lease"


class Step(NamedTuple):
    """The record after the command, the answer, and the waiter to wake, if the step offered the lease to one."""

    record: Record
    answer: Answer
    wake: HolderRecord | None = None


def next_fence(record: Record, moment: Moment) -> int:
    """Return a fence above every earlier one, and above every fence granted before the engine lost its data."""
    return max(record.fence + 1, moment.wall_us)


def advance(record: Record, moment: Moment) -> Record:
    """Apply due expiries: drop an ended lease, dead waiters and tombstones, and offer a free lease to a live waiter."""
    if 0 < record.tombstones.ends_us <= moment.now_us:
        record = record._replace(tombstones=NO_TOMBSTONES)
    if record.waiters.clients and (moment.gone or moment.silent):
        dead = record.waiters.clients.keys() & (moment.gone | moment.silent)
        if dead:
            record = record._replace(waiters=record.waiters.without_clients(dead))
    holder = record.holder
    if holder is not None and (holder.expires_us <= moment.now_us or holder.client in moment.gone):
        record = record._replace(holder=None)
        if holder.offered and holder.client not in moment.gone and holder.client not in moment.silent:
            # The waiter is alive and may only have missed the offer: it goes to the end of the waiting line.
            late = Waiter(holder.token, holder.client, holder.holder, holder.ttl_ms, moment.now_us)
            record = record._replace(waiters=record.waiters.joined(late))

    if record.holder is None and record.waiters.clients:
        return offer(record, _next_waiter(record.waiters, moment), moment)
    return record


def _next_waiter(waiters: Line, moment: Moment) -> Waiter:
    """Return the first waiter whose client is not in doubt; the first of all if there is none."""
    first = waiters.first()
    assert first is not None
    if not moment.doubtful or first.client not in moment.doubtful:
        return first
    return next((waiter for waiter in waiters if waiter.client not in moment.doubtful), first)


def offer(record: Record, waiter: Waiter, moment: Moment) -> Record:
    """Offer the lease to this waiter for a short time, under a new fence; the waiter's next acquire confirms it."""
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
    """Grant the lease, confirm an offer, add a waiter to the waiting line, or refuse: all in one atomic step."""
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
    """Answer that another holder has the lease; add the waiter to the line, keep its place, or remove it."""
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
    """Restart the ttl of a confirmed lease. An expired lease stays expired, even if it is still free."""
    holder = record.holder
    if holder is None or not _holds(holder, command.token, moment) or holder.offered:
        before, record = record, advance(record, moment)
        return Step(record, _not_held(record, command.token, moment), _woken(before, record))

    # An extension may overtake shorter renewals, which must not shorten the lease: as long as its end is further away,
    # the longer ttl stays. Only a clock that was set back leaves an end beyond both.
    ttl_ms, expires_us = command.ttl_ms, moment.now_us + command.ttl_ms * 1000
    if holder.expires_us > expires_us:
        ttl_ms = max(holder.ttl_ms, ttl_ms)
        expires_us = min(holder.expires_us, moment.now_us + ttl_ms * 1000)
    renewed = holder._replace(ttl_ms=ttl_ms, expires_us=expires_us)
    return Step(record._replace(holder=renewed, touched_us=moment.now_us), Renewed())


def release(record: Record, command: ReleaseLease, moment: Moment) -> Step:
    """Free the lease and offer it to the next waiter, in one step. A second copy answers the same."""
    before, record = record, advance(record, moment)
    holder = record.holder
    if holder is None or holder.token != command.token:
        again = command.token == record.last
        answer: Answer = Released() if again else _not_held(record, command.token, moment)
        return Step(record, answer, _woken(before, record))

    successor = record.waiters.find(command.to) if command.to else None
    record = Record(record.fence, None, record.waiters, record.tombstones, command.token, moment.now_us)
    if command.tombstone:
        record = _with_tombstone(record, Tombstone(command.token, moment.now_us + TOMBSTONE_US, RELEASED), moment)
    record = advance(record, moment) if successor is None else offer(record, successor, moment)
    return Step(record, Released(), _woken(before, record))


def undo(record: Record, command: Undo, moment: Moment) -> Step:
    """End a token that no caller has, as holder or waiter, and leave a tombstone that refuses late copies."""
    before, record = record, advance(record, moment)
    if record.tombstones.find(command.token, moment.now_us) is None:
        record = _with_tombstone(record, Tombstone(command.token, moment.now_us + TOMBSTONE_US, UNDONE), moment)
    rest = record.waiters.without(command.token)
    held = record.holder is not None and record.holder.token == command.token
    record = record._replace(waiters=rest, holder=None if held else record.holder, touched_us=moment.now_us)
    record = advance(record, moment)
    return Step(record, Done(), _woken(before, record))


def break_(record: Record, command: Break, moment: Moment) -> Step:
    """End the lease with this fence by force: the fence grows, and a tombstone keeps the reason for the holder."""
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
    """Answer a client's heartbeat, and wake its waiter again if the waiter has not confirmed an offer yet.

    The answer says when the present lease ends, so that the client sends its next heartbeat at that moment: every
    client with a waiter watches the holder, whatever place its waiters have.
    """
    before, record = record, advance(record, moment)
    holder = record.holder
    if holder is None:
        return Step(record, HeartbeatReceived(0))

    unconfirmed = holder if holder.offered and holder.client == moment.client else None
    wake = _woken(before, record) or unconfirmed
    # Only an engine that cannot prove a death needs frequent heartbeats.
    near = moment.doubtful is not None and (
        unconfirmed is not None or any(waiter.client == moment.client for waiter in islice(record.waiters, WATCHERS))
    )
    offered = unconfirmed.token if unconfirmed else ""
    answer = HeartbeatReceived(_remaining_ms(holder, moment), offered, near=near)
    return Step(record._replace(touched_us=moment.now_us), answer, wake)


def show(record: Record, _command: Show, moment: Moment) -> Step:
    """Return who holds and who waits; change nothing."""
    now = advance(record, moment)
    held = now.holder

    def party(token: str, holder: str, fence: int, since_us: int, until_us: int) -> LeaseParty:
        since_ms = (moment.now_us - since_us) // 1000
        return LeaseParty(holder, token, fence, since_ms, max(0, until_us - moment.now_us) // 1000)

    holder = None if held is None else party(held.token, held.holder, held.fence, held.since_us, held.expires_us)
    waiters = tuple(party(waiter.token, waiter.holder, 0, waiter.since_us, 0) for waiter in now.waiters)
    return Step(record, LeaseInfo(now.fence, holder, held is not None and held.offered, waiters))


def wake_holder(record: Record, _command: WakeHolder, moment: Moment) -> Step:
    """Wake the holder; change nothing. A waiter with an unconfirmed offer is not a holder yet."""
    holder = advance(record, moment).holder
    if holder is None or holder.offered:
        return Step(record, NotHeld("no owner"))
    return Step(record, Done(), holder)


def forget_at_us(record: Record, memory_us: int) -> int:
    """Return when the engine may forget the name, unless it is used again."""
    held_us = 0 if record.holder is None else record.holder.expires_us
    return max(record.touched_us, record.tombstones.ends_us, held_us) + memory_us


def _holds(holder: HolderRecord | None, token: str, moment: Moment) -> bool:
    """Return whether this token has the lease or the offer now; then `advance` need not run."""
    if holder is None or holder.token != token or holder.expires_us <= moment.now_us:
        return False
    return holder.client not in moment.gone


def _with_tombstone(record: Record, tombstone: Tombstone, moment: Moment) -> Record:
    return record._replace(tombstones=record.tombstones.with_tombstone(tombstone, moment.now_us))


def _not_held(record: Record, token: str, moment: Moment) -> NotHeld:
    ended = record.tombstones.find(token, moment.now_us)
    return NotHeld(EXPIRED) if ended is None else NotHeld(ended.why, ended.detail)


def _remaining_ms(holder: HolderRecord, moment: Moment) -> int:
    """Return how long the lease lasts, rounded up, so that a command at that time finds the lease ended."""
    return -(-(holder.expires_us - moment.now_us) // 1000)


def _woken(before: Record, after: Record) -> HolderRecord | None:
    """Return the waiter to which this step offered the lease, if any."""
    holder = after.holder
    if holder is None or not holder.offered:
        return None
    return None if before.holder is not None and before.holder.fence == holder.fence else holder
