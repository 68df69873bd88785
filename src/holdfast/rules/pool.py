"""The law of pools: who is lent which item, when an item comes back, who is next.

A stock and a command go in, the answer comes out, and the stock has been told what changed. No clock, no input, no
output. Every function first brings the stock to the present (`advance`), then refuses, then grants. After each step no
free item is left that somebody in the queue may use: so a newcomer who finds one free overtakes nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.commands import (
    RWLOCK,
    Answer,
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
from holdfast.rules.lease import OFFER_MAX_US, TOMBSTONE_US
from holdfast.rules.lease_record import Moment, Tombstone
from holdfast.rules.pool_state import COOLING, FREE, LENT, OFFERED, ItemRecord, PoolState, PoolWaiter, Share
from holdfast.rules.rwlock import entry

# A command brings back so many items and no more: the next one goes on, and none is long.
DUE_AT_ONCE = 1000
OTHER_PERMITS = "other permits"
_SPREAD_BELOW, _SPREAD_PART = 2**32, 2**26


class Wakeup(NamedTuple):
    """Somebody to ring: an item is offered to it, or it had better look again."""

    client: str
    token: str


class RuleResult(NamedTuple):
    """The answer, and whom to ring."""

    answer: Answer
    wakes: list[Wakeup]


def next_fence(state: PoolState, moment: Moment) -> int:
    """Larger than every fence of the pool before it: so it grows for each item, also for one that left and returned."""
    state.fence = max(state.fence + 1, moment.wall_us)
    return state.fence


def advance(state: PoolState, moment: Moment) -> list[Wakeup]:
    """Bring the stock to the present: what has lapsed comes back, what is free goes to whoever waits for it."""
    fallen = moment.gone | moment.silent
    if fallen:
        state.waiting_line.drop(fallen)
    for _ in range(DUE_AT_ONCE):
        item = state.due(moment.now_us)
        if item is None:
            break
        _come_back(state, item, moment)
    return hand_out(state, moment)


def _come_back(state: PoolState, item: ItemRecord, moment: Moment) -> None:
    until_us = item.back_us + item.cooldown_ms * 1000
    if item.state == LENT and until_us > moment.now_us:
        # Nobody knows how the work of a dead or lost borrower ended: the item rests.
        state.put(_at_rest(item)._replace(state=COOLING, back_us=until_us))
        return
    lives = item.client not in moment.gone and item.client not in moment.silent
    if item.state == OFFERED and lives and (state.size or state.kind == RWLOCK):
        # It may only not have heard. Whoever lives keeps a place in the queue: the last one; an empty pool has none.
        late = (item.token, item.client, item.holder, item.ttl_ms, moment.now_us, item.cooldown_ms, item.share)
        state.waiting_line.join(PoolWaiter(*late))
    _free(state, item)


def _at_rest(item: ItemRecord) -> ItemRecord:
    return item._replace(token="", client="", holder="", ttl_ms=0, share=Share())


def _free(state: PoolState, item: ItemRecord) -> None:
    if item.leaving:
        state.drop(item.name)
    else:
        state.put(_at_rest(item)._replace(state=FREE, back_us=0, cooldown_ms=0))


def hand_out(state: PoolState, moment: Moment) -> list[Wakeup]:
    """Offer free items to those who wait: to whoever came first among those who may use one."""
    wakeups: list[Wakeup] = []
    while True:
        for waiter in _next(state):
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


def _next(state: PoolState) -> list[PoolWaiter]:
    """Who may be next: the first of each share; of a read-write lock, the first of all."""
    return state.waiting_line.first(1) if state.kind == RWLOCK else state.waiting_line.heads()


def _pick(state: PoolState, token: str, share: Share) -> ItemRecord | None:
    return entry(state, token, share.tag) if state.kind == RWLOCK else state.next_free(share)


def borrow(state: PoolState, command: Borrow, moment: Moment) -> RuleResult:
    """Lend, confirm, queue or refuse: in that one step nobody can come between."""
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
            _seat(state, command.permits)
        item = state.taken_by(command.token)
        wakeups = [call for call in wakeups if call.token != command.token]
    # Whatever is free now, nobody in the queue may use; only of a read-write lock everybody might.
    if (
        item is None
        and state.waiting_line.find(command.token) is None
        and not (state.kind == RWLOCK and len(state.waiting_line))
    ):
        item = _pick(state, command.token, Share(command.tag, command.share_ppm))
    if item is None:
        return RuleResult(_wait(state, command, moment), wakeups)

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


def _wait(state: PoolState, command: Borrow, moment: Moment) -> Busy:
    share, place = Share(command.tag, command.share_ppm), state.waiting_line.place(command.token)
    empty = not state.size and state.kind != RWLOCK
    if command.wait and not empty and place is None:
        place = len(state.waiting_line)
        waiter = (
            command.token,
            moment.client,
            command.holder,
            command.ttl_ms,
            moment.now_us,
            command.cooldown_ms,
            share,
        )
        state.waiting_line.join(PoolWaiter(*waiter))
    elif place is not None and (empty or not command.wait):
        state.waiting_line.leave(command.token)
        place = None
    others = not share.whole and state.next_free(Share()) is not None
    reason = "empty pool" if empty else "share used up" if others else "busy" if state.kind == RWLOCK else "all busy"
    return Busy("", state.fence, _next_ms(state, moment), place, reason)


def extend(state: PoolState, command: Extend, moment: Moment) -> RuleResult:
    """Restart the ttl of a full lease; a lapsed one stays lapsed, even if nobody took the item."""
    item = state.find(command.item)
    if item is None or item.state != LENT or item.token != command.token or item.back_us <= moment.now_us:
        wakeups = advance(state, moment)
        return RuleResult(_not_held(state, command.token, moment), wakeups)
    # Never nearer than it was: a renewal that was overtaken by a longer one must not cut that one short.
    back_us = max(item.back_us, moment.now_us + command.ttl_ms * 1000)
    state.put(item._replace(ttl_ms=command.ttl_ms, back_us=back_us))
    return RuleResult(Renewed(), [])


def give_back(state: PoolState, command: Return, moment: Moment) -> RuleResult:
    """Free the item, or have it cool, and offer it on, in one step; the same token may say so twice."""
    wakeups = advance(state, moment)
    item = state.find(command.item)
    if item is None or not item.taken or item.token != command.token:
        again = item is not None and item.last == command.token
        return RuleResult(Released() if again else _not_held(state, command.token, moment), wakeups)

    if command.tombstone:
        _add_tombstone(state, Tombstone(command.token, moment.now_us + TOMBSTONE_US, "released"), moment)
    wakeups += _rest(state, item._replace(last=command.token), command.cooldown_ms, moment)
    return RuleResult(Released(), wakeups)


def _rest(state: PoolState, item: ItemRecord, cooldown_ms: int, moment: Moment) -> list[Wakeup]:
    """Nobody has the item any more: it cools for so long, or goes to the next one."""
    if not cooldown_ms:
        _free(state, item)
        return hand_out(state, moment)
    state.put(
        _at_rest(item)._replace(state=COOLING, back_us=moment.now_us + cooldown_ms * 1000, cooldown_ms=cooldown_ms)
    )
    # It may come back before anything that they know of: whoever is next looks again.
    return [Wakeup(waiter.client, waiter.token) for waiter in _next(state)]


def take_back(state: PoolState, command: UndoBorrow, moment: Moment) -> RuleResult:
    """End a token that nobody owns, wherever it stands, and refuse what still comes under it."""
    wakeups = advance(state, moment)
    if state.tombstones.find(command.token, moment.now_us) is None:
        _add_tombstone(state, Tombstone(command.token, moment.now_us + TOMBSTONE_US, "undone"), moment)
    state.waiting_line.leave(command.token)
    item = state.taken_by(command.token)
    if item is not None:
        _free(state, item)
    wakeups += hand_out(state, moment)
    return RuleResult(Done(), [call for call in wakeups if call.token != command.token])


def break_item(state: PoolState, command: BreakItem, moment: Moment) -> RuleResult:
    """End the lease under this fence by force: the fence grows, the item rests, its borrower will be told why."""
    wakeups = advance(state, moment)
    item = state.find(command.item)
    if item is None or not item.taken or item.fence != command.fence:
        return RuleResult(NotHeld("no such lease"), wakeups)
    until_us = moment.now_us + max(TOMBSTONE_US, 2 * item.ttl_ms * 1000)
    _add_tombstone(state, Tombstone(item.token, until_us, "broken", command.reason), moment)
    cooldown_ms = item.cooldown_ms if item.state == LENT else 0
    wakeups += _rest(state, item._replace(fence=next_fence(state, moment)), cooldown_ms, moment)
    return RuleResult(Released(), wakeups)


def cool_item(state: PoolState, command: CoolItem, moment: Moment) -> RuleResult:
    """Keep an item that nobody has from everybody; what is lent is its borrower's affair."""
    wakeups = advance(state, moment)
    item = state.find(command.item)
    if item is None:
        return RuleResult(UnknownItems((command.item,)), wakeups)
    if item.taken:
        return RuleResult(ItemsStillLent((command.item,)), wakeups)
    return RuleResult(Done(), wakeups + _rest(state, item, command.cooldown_ms, moment))


def change(state: PoolState, command: ChangePool, moment: Moment) -> RuleResult:
    """Other items from now on: all of the change, or none of it."""
    wakeups = advance(state, moment)
    wanted = dict.fromkeys(command.items)
    if command.how == "set":
        going = [name for name in state.names() if name not in wanted]
    else:
        going = list(wanted) if command.how == "remove" else []
    found = {name: state.find(name) for name in (*wanted, *going)}
    absent = tuple(name for name in going if (item := found[name]) is None or item.leaving)
    if absent:
        return RuleResult(UnknownItems(absent), wakeups)
    lent = tuple(sorted(name for name in going if (item := found[name]) is not None and item.taken))
    if lent and not command.leave:
        return RuleResult(ItemsStillLent(lent), wakeups)

    added = 0
    for name in () if command.how == "remove" else wanted:
        item = found[name]
        if item is None:
            state.put(ItemRecord(name, FREE, _spread(command.seed, added)))
        elif item.leaving:
            state.put(item._replace(leaving=False))
        added += item is None or item.leaving
    for name in going:
        item = found[name]
        assert item is not None
        if item.state == FREE:
            state.drop(name)
        else:
            state.put(item._replace(leaving=True))
    state.permits = command.permits
    state.reset_shares()
    wakeups += hand_out(state, moment) if state.size else _send_away(state)
    return RuleResult(PoolChanged(added, len(going), lent), wakeups)


def _spread(seed: int, number: int) -> int:
    """The order of a new item: below that of any used one, and other for each dice. No step exceeds 53 bits."""
    placed = seed * (2 * number + 1) % _SPREAD_BELOW
    part = placed % _SPREAD_PART
    return (part * part + placed) % _SPREAD_BELOW


def _send_away(state: PoolState) -> list[Wakeup]:
    """There is nothing to wait for any more."""
    waiting = state.waiting_line.first(len(state.waiting_line))
    state.waiting_line.drop(set(state.waiting_line.clients))
    return [Wakeup(waiter.client, waiter.token) for waiter in waiting]


def _seat(state: PoolState, permits: int) -> None:
    """The seats of a new semaphore, used in the order of their numbers."""
    for number in range(1, permits + 1):
        state.put(ItemRecord(str(number), FREE, number))
    state.permits = permits
    state.reset_shares()


def tend(state: PoolState, _command: PoolHeartbeat, moment: Moment) -> RuleResult:
    """A client says that its waiters live. Offers that were made but not heard are rung again."""
    wakeups = advance(state, moment)
    unheard = sorted(state.offers(moment.client), key=lambda item: item.token)
    known = {call.token for call in wakeups}
    wakeups += [Wakeup(item.client, item.token) for item in unheard if item.token not in known]
    return RuleResult(HeartbeatReceived(_next_ms(state, moment), unheard[0].token if unheard else ""), wakeups)


def count(state: PoolState, command: GetPoolStats, moment: Moment) -> RuleResult:
    """How the pool stands now."""
    wakeups = advance(state, moment)
    lent, cooling, free = state.counts()
    items = tuple(_seen(item, moment) for item in state.first(command.limit))
    waiters = tuple(
        LeaseParty(waiter.holder, waiter.token, 0, (moment.now_us - waiter.since_us) // 1000, 0)
        for waiter in state.waiting_line.first(command.limit)
    )
    figures = (state.fence, state.permits, state.size, lent, cooling, free, len(state.waiting_line))
    return RuleResult(PoolSnapshot(*figures, items, waiters), wakeups)


def _seen(item: ItemRecord, moment: Moment) -> ItemSnapshot:
    since_ms = (moment.now_us - item.since_us) // 1000 if item.used else -1
    remaining_ms = max(0, item.back_us - moment.now_us) // 1000 if item.state != FREE else 0
    return ItemSnapshot(item.name, item.state, item.leaving, item.fence, item.used, since_ms, remaining_ms, item.holder)


def _add_tombstone(state: PoolState, tombstone: Tombstone, moment: Moment) -> None:
    state.tombstones = state.tombstones.with_tombstone(tombstone, moment.now_us)


def _not_held(state: PoolState, token: str, moment: Moment) -> NotHeld:
    ended = state.tombstones.find(token, moment.now_us)
    return NotHeld("expired") if ended is None else NotHeld(ended.why, ended.detail)


def _next_ms(state: PoolState, moment: Moment) -> int:
    """When the next item comes back by itself; of a read-write lock, the last. Rounded up: who asks then finds it."""
    back_us = state.last_back_us() if state.kind == RWLOCK else state.next_back_us()
    return max(1, -(-(back_us - moment.now_us) // 1000)) if back_us else 0


PoolRule = Callable[[PoolState, Any, Moment], RuleResult]

POOL_RULES: dict[type, PoolRule] = {
    Borrow: borrow,
    Extend: extend,
    Return: give_back,
    UndoBorrow: take_back,
    BreakItem: break_item,
    CoolItem: cool_item,
    ChangePool: change,
    PoolHeartbeat: tend,
    GetPoolStats: count,
}
