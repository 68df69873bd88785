"""The law of pools: who is lent which item, when an item comes back, who is next.

A stock and a command go in, the answer comes out, and the stock has been told what changed. No clock, no input, no
output. Every function first brings the stock to the present (`settle`), then refuses, then grants. After each step no
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
    ItemSnapshot,
    ItemsStillLent,
    Marked,
    NotHeld,
    PoolChanged,
    PoolHeartbeat,
    PoolSnapshot,
    Refused,
    Released,
    Renewed,
    Return,
    Seat,
    UndoBorrow,
    UnknownItems,
)
from holdfast.rules.lease import OFFER_MAX_US, TOMB_US
from holdfast.rules.lease_record import Moment, Tomb
from holdfast.rules.pool_state import COOLING, FREE, LENT, OFFERED, Item, PoolState, PoolWaiter, Share
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


def next_fence(stock: PoolState, moment: Moment) -> int:
    """Larger than every fence of the pool before it: so it grows for each item, also for one that left and returned."""
    stock.fence = max(stock.fence + 1, moment.wall_us)
    return stock.fence


def settle(stock: PoolState, moment: Moment) -> list[Wakeup]:
    """Bring the stock to the present: what has lapsed comes back, what is free goes to whoever waits for it."""
    fallen = moment.gone | moment.silent
    if fallen:
        stock.queue.drop(fallen)
    for _ in range(DUE_AT_ONCE):
        item = stock.due(moment.now_us)
        if item is None:
            break
        _come_back(stock, item, moment)
    return hand_out(stock, moment)


def _come_back(stock: PoolState, item: Item, moment: Moment) -> None:
    until_us = item.back_us + item.cooldown_ms * 1000
    if item.state == LENT and until_us > moment.now_us:
        # Nobody knows how the work of a dead or lost borrower ended: the item rests.
        stock.put(_at_rest(item)._replace(state=COOLING, back_us=until_us))
        return
    lives = item.client not in moment.gone and item.client not in moment.silent
    if item.state == OFFERED and lives and (stock.size or stock.kind == RWLOCK):
        # It may only not have heard. Whoever lives keeps a place in the queue: the last one; an empty pool has none.
        late = (item.token, item.client, item.holder, item.ttl_ms, moment.now_us, item.cooldown_ms, item.share)
        stock.queue.join(PoolWaiter(*late))
    _free(stock, item)


def _at_rest(item: Item) -> Item:
    return item._replace(token="", client="", holder="", ttl_ms=0, share=Share())


def _free(stock: PoolState, item: Item) -> None:
    if item.leaving:
        stock.drop(item.name)
    else:
        stock.put(_at_rest(item)._replace(state=FREE, back_us=0, cooldown_ms=0))


def hand_out(stock: PoolState, moment: Moment) -> list[Wakeup]:
    """Offer free items to those who wait: to whoever came first among those who may use one."""
    rung: list[Wakeup] = []
    while True:
        for seeker in _next(stock):
            item = _pick(stock, seeker.token, seeker.share)
            if item is not None:
                break
        else:
            return rung
        stock.queue.leave(seeker.token)
        stock.put(
            item._replace(
                state=OFFERED,
                back_us=moment.now_us + min(seeker.ttl_ms * 1000, OFFER_MAX_US),
                cooldown_ms=seeker.cooldown_ms,
                fence=next_fence(stock, moment),
                token=seeker.token,
                client=seeker.client,
                holder=seeker.holder,
                ttl_ms=seeker.ttl_ms,
                share=seeker.share,
            )
        )
        rung.append(Wakeup(seeker.client, seeker.token))


def _next(stock: PoolState) -> list[PoolWaiter]:
    """Who may be next: the first of each share; of a read-write lock, the first of all."""
    return stock.queue.first(1) if stock.kind == RWLOCK else stock.queue.heads()


def _pick(stock: PoolState, token: str, share: Share) -> Item | None:
    return entry(stock, token, share.tag) if stock.kind == RWLOCK else stock.freest(share)


def borrow(stock: PoolState, command: Borrow, moment: Moment) -> RuleResult:
    """Lend, confirm, queue or refuse: in that one step nobody can come between."""
    rung: list[Wakeup] = []
    item = stock.taken_by(command.token)
    if item is None or item.back_us <= moment.now_us:
        ended = stock.tombs.find(command.token, moment.now_us)
        if ended is not None:
            return RuleResult(Refused(ended.why), [])
        rung = settle(stock, moment)
        if command.permits and command.permits != stock.permits:
            if stock.permits:
                return RuleResult(Refused(OTHER_PERMITS), rung)
            _seat(stock, command.permits)
        item = stock.taken_by(command.token)
        rung = [call for call in rung if call.token != command.token]
    # Whatever is free now, nobody in the queue may use; only of a read-write lock everybody might.
    if item is None and stock.queue.find(command.token) is None and not (stock.kind == RWLOCK and len(stock.queue)):
        item = _pick(stock, command.token, Share(command.tag, command.share_ppm))
    if item is None:
        return RuleResult(_wait(stock, command, moment), rung)

    fence = next_fence(stock, moment) if item.state == FREE else item.fence
    new = item.state != LENT
    stock.put(
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
    return RuleResult(Granted(fence, item.name), rung)


def _wait(stock: PoolState, command: Borrow, moment: Moment) -> Busy:
    share, place = Share(command.tag, command.share_ppm), stock.queue.place(command.token)
    empty = not stock.size and stock.kind != RWLOCK
    if command.wait and not empty and place is None:
        place = len(stock.queue)
        seeker = (
            command.token,
            moment.client,
            command.holder,
            command.ttl_ms,
            moment.now_us,
            command.cooldown_ms,
            share,
        )
        stock.queue.join(PoolWaiter(*seeker))
    elif place is not None and (empty or not command.wait):
        stock.queue.leave(command.token)
        place = None
    others = not share.whole and stock.freest(Share()) is not None
    reason = "empty pool" if empty else "share used up" if others else "busy" if stock.kind == RWLOCK else "all busy"
    return Busy("", stock.fence, _next_ms(stock, moment), place, reason)


def extend(stock: PoolState, command: Extend, moment: Moment) -> RuleResult:
    """Restart the ttl of a full lease; a lapsed one stays lapsed, even if nobody took the item."""
    item = stock.find(command.item)
    if item is None or item.state != LENT or item.token != command.token or item.back_us <= moment.now_us:
        rung = settle(stock, moment)
        return RuleResult(_not_held(stock, command.token, moment), rung)
    # Never nearer than it was: a renewal that was overtaken by a longer one must not cut that one short.
    back_us = max(item.back_us, moment.now_us + command.ttl_ms * 1000)
    stock.put(item._replace(ttl_ms=command.ttl_ms, back_us=back_us))
    return RuleResult(Renewed(), [])


def give_back(stock: PoolState, command: Return, moment: Moment) -> RuleResult:
    """Free the item, or have it cool, and offer it on, in one step; the same token may say so twice."""
    rung = settle(stock, moment)
    item = stock.find(command.item)
    if item is None or not item.taken or item.token != command.token:
        again = item is not None and item.last == command.token
        return RuleResult(Released() if again else _not_held(stock, command.token, moment), rung)

    if command.entomb:
        _entomb(stock, Tomb(command.token, moment.now_us + TOMB_US, "released"), moment)
    rung += _rest(stock, item._replace(last=command.token), command.cooldown_ms, moment)
    return RuleResult(Released(), rung)


def _rest(stock: PoolState, item: Item, cooldown_ms: int, moment: Moment) -> list[Wakeup]:
    """Nobody has the item any more: it cools for so long, or goes to the next one."""
    if not cooldown_ms:
        _free(stock, item)
        return hand_out(stock, moment)
    stock.put(
        _at_rest(item)._replace(state=COOLING, back_us=moment.now_us + cooldown_ms * 1000, cooldown_ms=cooldown_ms)
    )
    # It may come back before anything that they know of: whoever is next looks again.
    return [Wakeup(seeker.client, seeker.token) for seeker in _next(stock)]


def take_back(stock: PoolState, command: UndoBorrow, moment: Moment) -> RuleResult:
    """End a token that nobody owns, wherever it stands, and refuse what still comes under it."""
    rung = settle(stock, moment)
    if stock.tombs.find(command.token, moment.now_us) is None:
        _entomb(stock, Tomb(command.token, moment.now_us + TOMB_US, "undone"), moment)
    stock.queue.leave(command.token)
    item = stock.taken_by(command.token)
    if item is not None:
        _free(stock, item)
    rung += hand_out(stock, moment)
    return RuleResult(Done(), [call for call in rung if call.token != command.token])


def break_item(stock: PoolState, command: BreakItem, moment: Moment) -> RuleResult:
    """End the lease under this fence by force: the fence grows, the item rests, its borrower will be told why."""
    rung = settle(stock, moment)
    item = stock.find(command.item)
    if item is None or not item.taken or item.fence != command.fence:
        return RuleResult(NotHeld("no such lease"), rung)
    until_us = moment.now_us + max(TOMB_US, 2 * item.ttl_ms * 1000)
    _entomb(stock, Tomb(item.token, until_us, "broken", command.reason), moment)
    cooldown_ms = item.cooldown_ms if item.state == LENT else 0
    rung += _rest(stock, item._replace(fence=next_fence(stock, moment)), cooldown_ms, moment)
    return RuleResult(Released(), rung)


def cool_item(stock: PoolState, command: CoolItem, moment: Moment) -> RuleResult:
    """Keep an item that nobody has from everybody; what is lent is its borrower's affair."""
    rung = settle(stock, moment)
    item = stock.find(command.item)
    if item is None:
        return RuleResult(UnknownItems((command.item,)), rung)
    if item.taken:
        return RuleResult(ItemsStillLent((command.item,)), rung)
    return RuleResult(Done(), rung + _rest(stock, item, command.cooldown_ms, moment))


def change(stock: PoolState, command: ChangePool, moment: Moment) -> RuleResult:
    """Other items from now on: all of the change, or none of it."""
    rung = settle(stock, moment)
    wanted = dict.fromkeys(command.items)
    if command.how == "set":
        going = [name for name in stock.names() if name not in wanted]
    else:
        going = list(wanted) if command.how == "remove" else []
    found = {name: stock.find(name) for name in (*wanted, *going)}
    absent = tuple(name for name in going if (item := found[name]) is None or item.leaving)
    if absent:
        return RuleResult(UnknownItems(absent), rung)
    lent = tuple(sorted(name for name in going if (item := found[name]) is not None and item.taken))
    if lent and not command.leave:
        return RuleResult(ItemsStillLent(lent), rung)

    added = 0
    for name in () if command.how == "remove" else wanted:
        item = found[name]
        if item is None:
            stock.put(Item(name, FREE, _spread(command.seed, added)))
        elif item.leaving:
            stock.put(item._replace(leaving=False))
        added += item is None or item.leaving
    for name in going:
        item = found[name]
        assert item is not None
        if item.state == FREE:
            stock.drop(name)
        else:
            stock.put(item._replace(leaving=True))
    stock.permits = command.permits
    stock.regroup()
    rung += hand_out(stock, moment) if stock.size else _send_away(stock)
    return RuleResult(PoolChanged(added, len(going), lent), rung)


def _spread(seed: int, number: int) -> int:
    """The order of a new item: below that of any used one, and other for each dice. No step exceeds 53 bits."""
    placed = seed * (2 * number + 1) % _SPREAD_BELOW
    part = placed % _SPREAD_PART
    return (part * part + placed) % _SPREAD_BELOW


def _send_away(stock: PoolState) -> list[Wakeup]:
    """There is nothing to wait for any more."""
    waiting = stock.queue.first(len(stock.queue))
    stock.queue.drop(set(stock.queue.clients))
    return [Wakeup(seeker.client, seeker.token) for seeker in waiting]


def _seat(stock: PoolState, permits: int) -> None:
    """The seats of a new semaphore, used in the order of their numbers."""
    for number in range(1, permits + 1):
        stock.put(Item(str(number), FREE, number))
    stock.permits = permits
    stock.regroup()


def tend(stock: PoolState, _command: PoolHeartbeat, moment: Moment) -> RuleResult:
    """A client says that its waiters live. Offers that were made but not heard are rung again."""
    rung = settle(stock, moment)
    unheard = sorted(stock.offers(moment.client), key=lambda item: item.token)
    known = {call.token for call in rung}
    rung += [Wakeup(item.client, item.token) for item in unheard if item.token not in known]
    return RuleResult(Marked(_next_ms(stock, moment), unheard[0].token if unheard else ""), rung)


def count(stock: PoolState, command: GetPoolStats, moment: Moment) -> RuleResult:
    """How the pool stands now."""
    rung = settle(stock, moment)
    lent, cooling, free = stock.counts()
    items = tuple(_seen(item, moment) for item in stock.first(command.limit))
    waiters = tuple(
        Seat(seeker.holder, seeker.token, 0, (moment.now_us - seeker.since_us) // 1000, 0)
        for seeker in stock.queue.first(command.limit)
    )
    figures = (stock.fence, stock.permits, stock.size, lent, cooling, free, len(stock.queue))
    return RuleResult(PoolSnapshot(*figures, items, waiters), rung)


def _seen(item: Item, moment: Moment) -> ItemSnapshot:
    since_ms = (moment.now_us - item.since_us) // 1000 if item.used else -1
    remaining_ms = max(0, item.back_us - moment.now_us) // 1000 if item.state != FREE else 0
    return ItemSnapshot(item.name, item.state, item.leaving, item.fence, item.used, since_ms, remaining_ms, item.holder)


def _entomb(stock: PoolState, tomb: Tomb, moment: Moment) -> None:
    stock.tombs = stock.tombs.with_tomb(tomb, moment.now_us)


def _not_held(stock: PoolState, token: str, moment: Moment) -> NotHeld:
    ended = stock.tombs.find(token, moment.now_us)
    return NotHeld("expired") if ended is None else NotHeld(ended.why, ended.detail)


def _next_ms(stock: PoolState, moment: Moment) -> int:
    """When the next item comes back by itself; of a read-write lock, the last. Rounded up: who asks then finds it."""
    back_us = stock.last_back_us() if stock.kind == RWLOCK else stock.next_back_us()
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
