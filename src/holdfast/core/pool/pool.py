"""Pools: one of many, exclusively. What a pool object knows, what an item's lease says, and what people may change.

An item is a lease like any other: granted, renewed, lost and given back by the same life-cycle. What differs is in its
words to the engine, and in its end: an item whose use ended badly cools before anybody else gets it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.clock import NS_PER_MS, Seconds, duration_ms, timeout_ns, ttl_ms
from holdfast.commands import (
    POOL,
    WHOLE_PPM,
    AcquireCommand,
    Answer,
    Borrow,
    BreakItem,
    ChangePool,
    Command,
    CoolItem,
    Extend,
    GetPoolStats,
    Granted,
    ItemsStillLent,
    NotHeld,
    PoolChanged,
    PoolHeartbeat,
    PoolSnapshot,
    Release,
    ReleaseCommand,
    Released,
    Renewed,
    Return,
    Undo,
    UndoBorrow,
    UnknownItems,
)
from holdfast.core.keeper.restart_guard import many_rights
from holdfast.core.lease.lease import LeaseBase
from holdfast.core.lease.lock import Unset, confirmed_by, is_coroutine_function
from holdfast.core.lease.state import ENDED, HELD, RELEASING, LeaseIdentity
from holdfast.core.pool.options import ITEMS_MAX, any_of, checked_errors, checked_items, checked_share
from holdfast.core.resend import WIRE_NS, resend, send_safely
from holdfast.core.step import answer_of
from holdfast.engines import Capability
from holdfast.errors import InvalidConfig, ItemsLent, NotFound, NotOwner, Unavailable
from holdfast.names import Holder, checked_name, is_unicode, this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.core.client import Client

COOL_S = 6.0
_REASON_MAX = 500


class ItemStatus(NamedTuple):
    """One item, as people see it: free, offered, lent or cooling; who has it, since when, and how often it was used.

    `since` counts from its last acquisition and is `None` before the first; `remaining` until it comes back by itself.
    """

    name: str
    state: str
    leaving: bool
    fence: int
    used: int
    since: float | None
    remaining: float
    holder: Holder | None


class PoolStats(NamedTuple):
    """How a pool stands. What could not be listed is missing, and `trouble` says why; the figures are there anyway."""

    name: str
    size: int
    lent: int
    cooling: int
    free: int
    waiting: int
    items: tuple[ItemStatus, ...]
    waiters: tuple[Holder, ...]
    trouble: str


class PoolBase:
    """Settings, checked before any input or output."""

    kind = POOL
    _permits = 0

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        ttl: Seconds,
        timeout: Seconds | None,
        cool: Seconds,
        cool_on: type[BaseException] | tuple[type[BaseException], ...],
        on_death: Seconds | None,
        on_loss: str | Callable[[Any], object],
        policies: tuple[str, ...],
        confirm: str | None = None,
    ) -> None:
        client.refuse_without(Capability.POOLS)
        self.name = checked_name(name)
        self._client = client
        self._ttl_ms = ttl_ms(ttl)
        self._timeout_ns = timeout_ns(timeout)
        self._cooldown_ms = duration_ms(cool, setting="cool")
        self._expiry_cooldown_ms = self._cooldown_ms if on_death is None else duration_ms(on_death, setting="on_death")
        self._cool_on = checked_errors(cool_on)
        if not callable(on_loss) and on_loss not in policies:
            raise InvalidConfig("on_loss", on_loss, f"it must be {' or '.join(policies)}, or callable with the item")
        if callable(on_loss) and is_coroutine_function(on_loss):
            raise InvalidConfig("on_loss", on_loss, "it must be a plain function: nobody would await it")
        self._on_loss = on_loss
        self._confirm = confirm is not None and bool(confirmed_by(client, confirm))

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} on {self._client.url}>"

    def _timeout_of(self, timeout: Seconds | Unset | None) -> int | None:
        return self._timeout_ns if isinstance(timeout, Unset) else timeout_ns(timeout)

    def _item_fields(self, tag: str | None, share: float, info: dict[str, Any] | None) -> tuple[Any, ...]:
        """What the lease of an item is made of."""
        client = self._client
        terms = Terms(self, *checked_share(tag, share))
        holder, packed = client.holder, client.packed
        if info is not None:
            more = this_process(holder.label, info).info  # checked
            holder = this_process(holder.label, {**holder.info, **more})
            packed = holder.packed()
        on_loss = self._on_loss if callable(self._on_loss) else None
        return (terms, client, self.name, self._ttl_ms, holder, packed, on_loss, self._confirm)


class Lender(Protocol):
    """What an item's lease asks of the pool that it came from; a semaphore has it too."""

    name: str
    _client: Client
    kind: str
    _permits: int
    _expiry_cooldown_ms: int
    _cooldown_ms: int
    _cool_on: tuple[type[BaseException], ...]
    _on_loss: Any


class Terms(NamedTuple):
    """On what terms an item is asked for."""

    pool: Lender
    tag: str = ""
    share_ppm: int = WHOLE_PPM


class ItemBase(LeaseBase):
    """The lease of an item: it has the pool's name until it is granted, and then the item's."""

    _item = ""
    _cooldown_ms = 0

    def __init__(self, terms: Terms, *fields: Any) -> None:
        self._terms = terms
        self._pool = terms.pool.name
        super().__init__(*fields)

    @property
    def pool(self) -> str:
        """The name of the pool."""
        return self._pool

    @property
    def info(self) -> dict[str, Any]:
        """What the borrower has said of this use, for people to read."""
        return self._holder.info

    def __repr__(self) -> str:
        return f"<item {self._item!r} of {self._pool!r} fence={self._fence} {self.state}>"

    # Its words to the engine.

    def acquire_command(self, wait: bool) -> AcquireCommand:
        pool, tag, share_ppm = self._terms
        ask = (self._pool, self.token, self.packed_holder, self.ttl_ms, wait, pool._expiry_cooldown_ms, tag, share_ppm)
        return Borrow(*ask, pool._permits, pool.kind)

    def renew_command(self, ttl_ms: int) -> Command:
        return Extend(self._pool, self._item, self.token, ttl_ms, self._terms.pool.kind)

    def release_command(self, to: str) -> Release | Return:  # noqa: ARG002 - an item goes to whoever is next
        return Return(self._pool, self._item, self.token, self._cooldown_ms, self._resent, self._terms.pool.kind)

    def undo_command(self) -> Undo | UndoBorrow:
        return UndoBorrow(self._pool, self.token, self._terms.pool.kind)

    def heartbeat_command(self) -> Command:
        return PoolHeartbeat(self._pool, self._terms.pool.kind)

    def late_release_command(self, command: ReleaseCommand) -> ReleaseCommand | None:  # noqa: ARG002
        return None  # how a lost borrower's work ended is uncertain: the item comes back after its ttl, and rests

    def _item_granted(self, answer: Granted) -> None:
        self._item = self.name = answer.item

    @property
    def identity(self) -> LeaseIdentity:
        """Every name of this item; events show the pool first, because an item's name says little alone."""
        pool, kind = self._pool, self._terms.pool.kind
        shown = self.name if self.name == pool else f"{pool}/{self.name}"
        return LeaseIdentity(self.name, f"{pool}\x00{kind}\x00{self._item}", many_rights(pool, kind), shown, pool)

    @property
    def cooldown_ns(self) -> int:
        return self._terms.pool._expiry_cooldown_ms * NS_PER_MS

    def _cools_on(self, error: BaseException | None) -> None:
        """Whether the block's error says that the outcome is uncertain."""
        pool = self._terms.pool
        if error is not None and any_of(error, pool._cool_on):
            self._cooldown_ms = max(self._cooldown_ms, pool._cooldown_ms)

    def _cool_for(self, seconds: Seconds | Unset) -> None:
        asked_ms = self._terms.pool._cooldown_ms if isinstance(seconds, Unset) else duration_ms(seconds)
        if self.state in (RELEASING, ENDED):
            raise NotOwner(self.name, "it was given back before; the pool's own cool() keeps an item that nobody has")
        self._cooldown_ms = asked_ms


async def extend(item: ItemBase, ttl: Seconds) -> None:
    """Have the lease last at least `ttl` from now, and after each renewal; raise `LeaseLost` if it is not held."""
    lasts_ms = ttl_ms(ttl)
    item.check()
    client, sent_ns = item.client, 0
    until_ns = client.clock.now_ns() + WIRE_NS

    async def send() -> Answer:
        """Renew as the keeper does: where replicas must confirm, they have."""
        nonlocal sent_ns
        sent_ns = client.clock.now_ns()
        command = item.renew_command(lasts_ms)
        if not item.confirm:
            return await answer_of(client.transport.apply(command, until_ns))
        (answer,) = await client.transport.confirm((command,), until_ns)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    try:
        answer = await send()
    except Unavailable as error:
        answer = await resend(client, send, error, until_ns)
    if isinstance(answer, NotHeld):
        item.lose(answer.reason, answer.detail)
    elif isinstance(answer, Renewed) and item.state is HELD:
        item.extended(sent_ns, lasts_ms)
        client.keeper.due(item.due_ns)
    item.check()


async def change(
    pool: Lender, how: str, items: Iterable[str], *, leave: bool, permits: int = 0, some: bool = False
) -> tuple[str, ...]:
    """Add, remove or set items, all or none; the names of those that go when they come back."""
    names = checked_items(items)
    if some and not names:
        raise InvalidConfig("items", names, "there must be at least one")
    seed = int.from_bytes(os.urandom(4), "big") | 1
    answer = await _change(pool._client, ChangePool(pool.name, how, names, leave, seed, permits, pool.kind))
    if isinstance(answer, ItemsStillLent):
        raise ItemsLent(pool.name, answer.items)
    if isinstance(answer, UnknownItems):
        raise NotFound(pool.name, f"item {answer.items[0]!r}")
    assert isinstance(answer, PoolChanged)
    return answer.leaving


async def cool(pool: PoolBase, item: str, seconds: Seconds) -> None:
    """Keep an item that nobody has from everybody for so long; 0 ends its cooldown."""
    answer = await send_safely(
        pool._client, CoolItem(pool.name, checked_name(item, "an item"), duration_ms(seconds), pool.kind)
    )
    if isinstance(answer, ItemsStillLent):
        raise ItemsLent(pool.name, answer.items)
    if isinstance(answer, UnknownItems):
        raise NotFound(pool.name, f"item {item!r}")


async def break_item(pool: PoolBase, item: str, reason: str, fence: int | None = None) -> None:
    """End the lease of an item by force, or only that of the fence. Its borrower hears why; it rests as if one died."""
    if not isinstance(reason, str) or not 0 < len(reason) <= _REASON_MAX or not is_unicode(reason):
        rule = f"it must be text of 1 to {_REASON_MAX} characters without lone surrogates, for the borrower to read"
        raise InvalidConfig("reason", reason, rule)
    if fence is None:
        fence = (await lent(pool, item)).fence
    answer = await send_safely(pool._client, BreakItem(pool.name, item, fence, reason, pool.kind), _broken_before)
    if isinstance(answer, NotHeld):
        raise NotFound(pool.name, f"lease of {item!r} with fence {fence} any more")


async def lent(pool: PoolBase, item: str) -> ItemStatus:
    """How an item stands that somebody has; `NotFound` if nobody does."""
    figures = await stats(pool, 0)
    now = await stats(pool, min(ITEMS_MAX, figures.lent + figures.cooling))  # what is lent is listed first
    found = next((one for one in now.items if one.name == checked_name(item, "an item")), None)
    if found is None or found.state not in ("lent", "offered"):
        raise NotFound(pool.name, f"lent item {item!r}")
    return found


async def stats(pool: Lender, limit: int) -> PoolStats:
    """How the pool stands now."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= ITEMS_MAX:
        raise InvalidConfig("limit", limit, f"it must be a whole number from 0 to {ITEMS_MAX}")
    answer = await send_safely(pool._client, GetPoolStats(pool.name, limit, pool.kind))
    assert isinstance(answer, PoolSnapshot)
    items = tuple(
        ItemStatus(
            seen.item,
            seen.state,
            seen.leaving,
            seen.fence,
            seen.used,
            None if seen.since_ms < 0 else seen.since_ms / 1000,
            seen.remaining_ms / 1000,
            Holder.unpacked(seen.holder) if seen.holder else None,
        )
        for seen in answer.items
    )
    waiters = tuple(Holder.unpacked(seat.holder) for seat in answer.waiters)
    figures = (answer.size, answer.lent, answer.cooling, answer.free, answer.waiting)
    return PoolStats(pool.name, *figures, items, waiters, answer.trouble)


async def _change(client: Client, command: ChangePool) -> Answer:
    """Send a change; if a reply was lost, find out what the first copy answered."""

    async def second_answer(answer: Answer) -> Answer:
        return await _changed_before(client, command, answer)

    return await send_safely(client, command, second_answer)


async def _broken_before(answer: Answer) -> Answer:
    """Interpret the answer to a second copy: if the fence is gone, the first copy has ended its lease."""
    return Released() if isinstance(answer, NotHeld) else answer


async def _changed_before(client: Client, command: ChangePool, answer: Answer) -> Answer:
    """What the first copy of a change would have answered: it has done what the second found done."""
    if isinstance(answer, ItemsStillLent) or (
        isinstance(answer, UnknownItems) and set(answer.items) != set(command.items)
    ):
        return answer
    figures: Any = await send_safely(client, GetPoolStats(command.name, 0, command.kind))
    taken: Any = await send_safely(client, GetPoolStats(command.name, figures.lent + figures.cooling, command.kind))
    leaving = {seen.item for seen in taken.items if seen.leaving and seen.state in ("lent", "offered")}
    going = leaving - set(command.items) if command.operation == "set" else leaving & set(command.items)
    return PoolChanged(0, 0, tuple(sorted(going)))
