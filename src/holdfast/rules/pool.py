"""The rules of pools: which waiter gets which item, and when an item becomes available again.

A rule takes the state of a pool, a command and the moment; it changes the state and returns the answer. Rules use no
clock and do no I/O. Every rule first applies due expiries (`advance`), then refuses, then grants. After each step, no
free item is left that a waiter may use, so a newcomer that finds a free item overtakes no waiter.
"""

from __future__ import annotations

from holdfast.commands import (
    RWLOCK,
    Borrow,
    BreakItem,
    Busy,
    ChangePool,
    CoolItem,
    Done,
    Extend,
    GetPoolStats,
    Granted,
    HeartbeatReceived,
    ItemSnapshot,
    ItemsStillLent,
    LeaseParty,
    NotHeld,
    PoolChanged,
    PoolHeartbeat,
    PoolSnapshot,
    Refused,
    Released,
    Renewed,
    Return,
    UndoBorrow,
    UnknownItems,
)
from holdfast.rules.lease import (
    BROKEN,
    EXPIRED,
    NO_SUCH_LEASE,
    OFFER_MAX_US,
    RELEASED,
    TOMBSTONE_US,
    UNDONE,
)
from holdfast.rules.lease_record import Moment, Tombstone
from holdfast.rules.pool_state import COOLING, FREE, LENT, OFFERED, ItemRecord, PoolState, PoolWaiter, Share
from holdfast.rules.result import RuleResult, Wakeup
from holdfast.rules.rwlock import item_for
from holdfast.rules.trust import WATCHERS

# The most items that one command expires. The next command continues, so no command takes long.
DUE_AT_ONCE = 1000
OTHER_PERMITS = "other permits"
EMPTY_POOL, SHARE_USED_UP, ALL_BUSY, BUSY = "empty pool", "share used up", "all busy", "busy"
_SPREAD_BELOW, _SPREAD_PART = 2**32, 2**26


def next_fence(state: PoolState, moment: Moment) -> int:
    """Return a fence above all earlier fences of the pool, even for an item that was removed and added again."""
    state.fence = max(state.fence + 1, moment.wall_us)
    return state.fence


def advance(state: PoolState, moment: Moment) -> list[Wakeup]:
    """Apply due expiries of leases, offers and cooldowns, then offer the free items to waiters."""
    dead_clients = moment.gone | moment.silent
    if dead_clients:
        state.waiting_line.drop(dead_clients)
    for _ in range(DUE_AT_ONCE):
        item = state.due(moment.now_us)
        if item is None:
            break
        _expire(state, item, moment)
    return offer_free_items(state, moment)


def _expire(state: PoolState, item: ItemRecord, moment: Moment) -> None:
    """End the lease, the offer or the cooldown of an item whose time is over."""
    until_us = item.back_us + item.cooldown_ms * 1000
    if item.state == LENT and until_us > moment.now_us:
        # The outcome of a dead or lost borrower's work is unknown, so the item cools first.
        state.put(_without_lease(item)._replace(state=COOLING, back_us=until_us))
        return
    alive = item.client not in moment.gone and item.client not in moment.silent
    if item.state == OFFERED and alive and (state.size or state.kind == RWLOCK):
        # The waiter is alive and may only have missed the wake-up: it rejoins at the end of the waiting line. An empty
        # pool has no waiting line.
        fields = (item.token, item.client, item.holder, item.ttl_ms, moment.now_us, item.cooldown_ms, item.share)
        state.waiting_line.join(PoolWaiter(*fields))
    _free(state, item)


def _without_lease(item: ItemRecord) -> ItemRecord:
    return item._replace(token="", client="", holder="", ttl_ms=0, share=Share())


def _free(state: PoolState, item: ItemRecord) -> None:
    if item.leaving:
        state.drop(item.name)
    else:
        state.put(_without_lease(item)._replace(state=FREE, back_us=0, cooldown_ms=0))


def offer_free_items(state: PoolState, moment: Moment) -> list[Wakeup]:
    """Offer each free item to the first waiter that may use it; return the waiters to wake up."""
    wakeups: list[Wakeup] = []
    while True:
        for waiter in _first_waiters(state, moment):
            item = _pick(state, waiter.token, waiter.share)
            if item is not None:
                break
        else:
            return wakeups
        state.waiting_line.leave(waiter.token)
        state.put(
            item._replace(
                state=OFFERED,
                back_us=moment.now_us + min(waiter.ttl_ms * 1000, OFFER_MAX_US),
                cooldown_ms=waiter.cooldown_ms,
                fence=next_fence(state, moment),
                token=waiter.token,
                client=waiter.client,
                holder=waiter.holder,
                ttl_ms=waiter.ttl_ms,
                share=waiter.share,
            )
        )
        wakeups.append(Wakeup(waiter.client, waiter.token))


def _first_waiters(state: PoolState, moment: Moment) -> list[PoolWaiter]:
    """Return the waiters that may be next: the first of each share; for a read-write lock, only the very first.

    A waiter whose client is in doubt is the first only if there is no other.
    """
    line, doubtful = state.waiting_line, moment.doubtful
    found = line.first(1) if state.kind == RWLOCK else line.heads()
    if not doubtful or not any(waiter.client in doubtful for waiter in found):
        return found
    every = line.first(len(line))
    firsts = {_line_of(state, waiter): waiter for waiter in reversed(every) if waiter.client not in doubtful}
    chosen = {firsts.get(_line_of(state, waiter), waiter) for waiter in found}
    return [waiter for waiter in every if waiter in chosen]


def _line_of(state: PoolState, waiter: PoolWaiter) -> Share:
    return Share() if state.kind == RWLOCK else waiter.share


def _pick(state: PoolState, token: str, share: Share) -> ItemRecord | None:
    """Return the item that this token would get now, or `None`."""
    return item_for(state, token, share.tag) if state.kind == RWLOCK else state.next_free(share)


def borrow(state: PoolState, command: Borrow, moment: Moment) -> RuleResult:
    """Lend an item, confirm an offer, add the token to the waiting line, or refuse; all in one step."""
    wakeups: list[Wakeup] = []
    item = state.taken_by(command.token)
    if item is None or item.back_us <= moment.now_us:
        ended = state.tombstones.find(command.token, moment.now_us)
        if ended is not None:
            return RuleResult(Refused(ended.why), [])
        wakeups = advance(state, moment)
        if command.permits and command.permits != state.permits:
            if state.permits:
                return RuleResult(Refused(OTHER_PERMITS), wakeups)
            _create_permits(state, command.permits)
        item = state.taken_by(command.token)
        wakeups = [wakeup for wakeup in wakeups if wakeup.token != command.token]
    # No waiter may use an item that is free now. Only a read-write lock needs the check for waiters.
    line = state.waiting_line
    if item is None and line.find(command.token) is None and not (state.kind == RWLOCK and len(line)):
        item = _pick(state, command.token, Share(command.tag, command.share_ppm))
    if item is None:
        return _wait(state, command, moment, wakeups)

    fence = next_fence(state, moment) if item.state == FREE else item.fence
    new = item.state != LENT
    state.put(
        item._replace(
            state=LENT,
            order=fence,
            back_us=moment.now_us + command.ttl_ms * 1000,
            cooldown_ms=command.cooldown_ms,
            used=item.used + new,
            since_us=moment.now_us if new else item.since_us,
            fence=fence,
            token=command.token,
            client=moment.client,
            holder=command.holder,
            ttl_ms=command.ttl_ms,
            share=Share(),
        )
    )
    return RuleResult(Granted(fence, item.name), wakeups)


def _wait(state: PoolState, command: Borrow, moment: Moment, wakeups: list[Wakeup]) -> RuleResult:
    """Add the token to the waiting line, keep its place or remove it; answer why it got no item."""
    share, place = Share(command.tag, command.share_ppm), state.waiting_line.place(command.token)
    empty = not state.size and state.kind != RWLOCK
    if command.wait and not empty and place is None:
        place = len(state.waiting_line)
        client, now_us = moment.client, moment.now_us
        state.waiting_line.join(
            PoolWaiter(command.token, client, command.holder, command.ttl_ms, now_us, command.cooldown_ms, share)
        )
    elif place is not None and (empty or not command.wait):
        state.waiting_line.leave(command.token)
        place = None
        wakeups += offer_free_items(state, moment)  # readers may have waited only for this writer
    others_free = not share.whole and state.next_free(Share()) is not None
    reason = EMPTY_POOL if empty else SHARE_USED_UP if others_free else BUSY if state.kind == RWLOCK else ALL_BUSY
    return RuleResult(Busy("", state.fence, _next_ms(state, moment), place, reason), wakeups)


def extend(state: PoolState, command: Extend, moment: Moment) -> RuleResult:
    """Restart the ttl of a held item. An expired lease stays expired, even if the item is still free."""
    item = state.find(command.item)
    if item is None or item.state != LENT or item.token != command.token or item.back_us <= moment.now_us:
        wakeups = advance(state, moment)
        return RuleResult(_not_held(state, command.token, moment), wakeups)
    # Never move the end closer: if a longer renewal arrives first, the shorter one must not shorten the lease.
    back_us = max(item.back_us, moment.now_us + command.ttl_ms * 1000)
    state.put(item._replace(ttl_ms=command.ttl_ms, back_us=back_us))
    return RuleResult(Renewed(), [])


def return_item(state: PoolState, command: Return, moment: Moment) -> RuleResult:
    """Free or cool the item and offer it to the next waiter, in one step; a resent `Return` gets the same answer."""
    wakeups = advance(state, moment)
    item = state.find(command.item)
    if item is None or not item.taken or item.token != command.token:
        again = item is not None and item.last == command.token
        return RuleResult(Released() if again else _not_held(state, command.token, moment), wakeups)

    if command.tombstone:
        _add_tombstone(state, Tombstone(command.token, moment.now_us + TOMBSTONE_US, RELEASED), moment)
    wakeups += _cool_or_free(state, item._replace(last=command.token), command.cooldown_ms, moment)
    return RuleResult(Released(), wakeups)


def _cool_or_free(state: PoolState, item: ItemRecord, cooldown_ms: int, moment: Moment) -> list[Wakeup]:
    """Start the cooldown of an item that is no longer held; without a cooldown, free it and offer it to a waiter."""
    if not cooldown_ms:
        _free(state, item)
        return offer_free_items(state, moment)
    back_us = moment.now_us + cooldown_ms * 1000
    state.put(_without_lease(item)._replace(state=COOLING, back_us=back_us, cooldown_ms=cooldown_ms))
    # This item may become available earlier than the first waiters expect, so wake them to send their command again.
    return [Wakeup(waiter.client, waiter.token) for waiter in _first_waiters(state, moment)]


def undo_borrow(state: PoolState, command: UndoBorrow, moment: Moment) -> RuleResult:
    """End the lease or the wait of a token that no caller has, and refuse later commands with this token."""
    wakeups = advance(state, moment)
    if state.tombstones.find(command.token, moment.now_us) is None:
        _add_tombstone(state, Tombstone(command.token, moment.now_us + TOMBSTONE_US, UNDONE), moment)
    state.waiting_line.leave(command.token)
    item = state.taken_by(command.token)
    if item is not None:
        _free(state, item)
    wakeups += offer_free_items(state, moment)
    return RuleResult(Done(), [wakeup for wakeup in wakeups if wakeup.token != command.token])


def break_item(state: PoolState, command: BreakItem, moment: Moment) -> RuleResult:
    """End the lease under this fence by force: the fence grows, the item cools, the tombstone keeps the reason."""
    wakeups = advance(state, moment)
    item = state.find(command.item)
    if item is None or not item.taken or item.fence != command.fence:
        return RuleResult(NotHeld(NO_SUCH_LEASE), wakeups)
    until_us = moment.now_us + max(TOMBSTONE_US, 2 * item.ttl_ms * 1000)
    _add_tombstone(state, Tombstone(item.token, until_us, BROKEN, command.reason), moment)
    cooldown_ms = item.cooldown_ms if item.state == LENT else 0
    wakeups += _cool_or_free(state, item._replace(fence=next_fence(state, moment)), cooldown_ms, moment)
    return RuleResult(Released(), wakeups)


def cool_item(state: PoolState, command: CoolItem, moment: Moment) -> RuleResult:
    """Start or end the cooldown of an item that is not lent."""
    wakeups = advance(state, moment)
    item = state.find(command.item)
    if item is None:
        return RuleResult(UnknownItems((command.item,)), wakeups)
    if item.taken:
        return RuleResult(ItemsStillLent((command.item,)), wakeups)
    return RuleResult(Done(), wakeups + _cool_or_free(state, item, command.cooldown_ms, moment))


def change(state: PoolState, command: ChangePool, moment: Moment) -> RuleResult:
    """Add, remove or replace items: the whole change or nothing."""
    wakeups = advance(state, moment)
    named = dict.fromkeys(command.items)
    if command.operation == "set":
        removed = [name for name in state.names() if name not in named]
    else:
        removed = list(named) if command.operation == "remove" else []
    found = {name: state.find(name) for name in (*named, *removed)}
    absent = tuple(name for name in removed if (item := found[name]) is None or item.leaving)
    if absent:
        return RuleResult(UnknownItems(absent), wakeups)
    lent = tuple(sorted(name for name in removed if (item := found[name]) is not None and item.taken))
    if lent and not command.leave:
        return RuleResult(ItemsStillLent(lent), wakeups)

    added = 0
    for name in () if command.operation == "remove" else named:
        item = found[name]
        if item is None:
            state.put(ItemRecord(name, FREE, _spread(command.seed, added)))
        elif item.leaving:
            state.put(item._replace(leaving=False))
        added += item is None or item.leaving
    for name in removed:
        item = found[name]
        assert item is not None
        if item.state == FREE:
            state.drop(name)
        else:
            state.put(item._replace(leaving=True))
    state.permits = command.permits
    state.reset_shares()
    wakeups += offer_free_items(state, moment) if state.size else _dismiss_waiters(state)
    return RuleResult(PoolChanged(added, len(removed), lent), wakeups)


def _spread(seed: int, number: int) -> int:
    """Return the order of a new item: a pseudo-random number by seed, below the order of any used item.

    No intermediate result exceeds 53 bits, so that Lua computes the same number.
    """
    mixed = seed * (2 * number + 1) % _SPREAD_BELOW
    low = mixed % _SPREAD_PART
    return (low * low + mixed) % _SPREAD_BELOW


def _dismiss_waiters(state: PoolState) -> list[Wakeup]:
    """Empty the waiting line of a pool without items; return wake-ups, so that the waiters learn of it."""
    waiting = state.waiting_line.first(len(state.waiting_line))
    state.waiting_line.drop(set(state.waiting_line.clients))
    return [Wakeup(waiter.client, waiter.token) for waiter in waiting]


def _create_permits(state: PoolState, permits: int) -> None:
    """Create the permits of a new semaphore, to be lent in the order of their numbers."""
    for number in range(1, permits + 1):
        state.put(ItemRecord(str(number), FREE, number))
    state.permits = permits
    state.reset_shares()


def heartbeat(state: PoolState, _command: PoolHeartbeat, moment: Moment) -> RuleResult:
    """Answer the heartbeat of a client's waiters; wake again each waiter that has not confirmed an offer."""
    wakeups = advance(state, moment)
    offered = sorted(state.offers(moment.client), key=lambda item: item.token)
    known = {wakeup.token for wakeup in wakeups}
    wakeups += [Wakeup(item.client, item.token) for item in offered if item.token not in known]
    near = moment.doubtful is not None and (
        bool(offered) or any(waiter.client == moment.client for waiter in state.waiting_line.first(WATCHERS))
    )
    token = offered[0].token if offered else ""
    return RuleResult(HeartbeatReceived(_next_ms(state, moment), token, near=near), wakeups)


def pool_stats(state: PoolState, command: GetPoolStats, moment: Moment) -> RuleResult:
    """Return statistics of the pool, with some of its items and waiters."""
    wakeups = advance(state, moment)
    lent, cooling, free = state.counts()
    items = tuple(_snapshot(item, moment) for item in state.first(command.limit))
    waiters = tuple(
        LeaseParty(waiter.holder, waiter.token, 0, (moment.now_us - waiter.since_us) // 1000, 0)
        for waiter in state.waiting_line.first(command.limit)
    )
    counts = (state.fence, state.permits, state.size, lent, cooling, free, len(state.waiting_line))
    return RuleResult(PoolSnapshot(*counts, items, waiters), wakeups)


def _snapshot(item: ItemRecord, moment: Moment) -> ItemSnapshot:
    since_ms = (moment.now_us - item.since_us) // 1000 if item.used else -1
    remaining_ms = max(0, item.back_us - moment.now_us) // 1000 if item.state != FREE else 0
    return ItemSnapshot(item.name, item.state, item.leaving, item.fence, item.used, since_ms, remaining_ms, item.holder)


def _add_tombstone(state: PoolState, tombstone: Tombstone, moment: Moment) -> None:
    state.tombstones = state.tombstones.with_tombstone(tombstone, moment.now_us)


def _not_held(state: PoolState, token: str, moment: Moment) -> NotHeld:
    ended = state.tombstones.find(token, moment.now_us)
    return NotHeld(EXPIRED) if ended is None else NotHeld(ended.why, ended.detail)


def _next_ms(state: PoolState, moment: Moment) -> int:
    """Return the time until an item is available again; for a read-write lock, until all leases have ended.

    Rounded up, so that a command at that time finds the item available.
    """
    back_us = state.last_back_us() if state.kind == RWLOCK else state.next_back_us()
    return max(1, -(-(back_us - moment.now_us) // 1000)) if back_us else 0
