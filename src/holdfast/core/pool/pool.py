"""Pools lend one of many items exclusively: the settings of a pool, the lease of an item, and changes of the pool.

The lease of an item has the same states and steps as any other. Two things differ: its commands to the engine, and its
end: an item whose use failed has a cooldown before the pool lends it again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.clock import NS_PER_MS, Seconds, duration_ms, timeout_ns, ttl_ms
from holdfast.commands import (
    POOL,
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
    ReleaseCommand,
    Released,
    ReleaseLease,
    Return,
    Undo,
    UndoBorrow,
    UnknownItems,
)
from holdfast.core.keeper.restart_guard import pool_resource
from holdfast.core.lease.lease import LeaseBase
from holdfast.core.lease.lock import Unset, checked_confirm, is_coroutine_function
from holdfast.core.lease.state import ENDED, RELEASING, LeaseIdentity
from holdfast.core.pool.options import (
    ITEMS_MAX,
    BorrowOptions,
    PoolOptions,
    any_of,
    checked_errors,
    checked_items,
    checked_reason,
    checked_share,
)
from holdfast.core.resend import send_safely
from holdfast.engines import Capability
from holdfast.errors import InvalidConfig, ItemsLent, NotFound, NotOwner
from holdfast.names import Holder, checked_name, this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.core.client import Client

COOL_S = 6.0


class ItemStatus(NamedTuple):
    """One item, for people. `state`: free, offered, lent or cooling; `used`: how often it was lent.

    `since`: seconds since the last acquisition, `None` before the first. `remaining`: seconds until its lease, offer or
    cooldown ends by itself. `leaving`: the item leaves the pool when it is returned.
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
    """Statistics of a pool, some of its items and some of its waiters.

    If the engine could not list them, `items` or `waiters` is empty and `trouble` says why.
    """

    name: str
    size: int
    lent: int
    cooling: int
    free: int
    waiting: int
    items: tuple[ItemStatus, ...]
    waiters: tuple[Holder, ...]
    trouble: str


class PoolCommands:
    """The commands that pools, semaphores and read-write locks share."""

    name: str
    _client: Client
    _options: PoolOptions

    async def _change(
        self, operation: str, items: Iterable[str], *, leave: bool, permits: int = 0, not_empty: bool = False
    ) -> tuple[str, ...]:
        """Add, remove or set items, all or none; return the names of the lent items that leave when returned."""
        names = checked_items(items)
        if not_empty and not names:
            raise InvalidConfig("items", names, "it must name at least one item")
        seed = int.from_bytes(os.urandom(4), "big") | 1
        command = ChangePool(self.name, operation, names, leave, seed, permits, self._options.kind)

        async def second_answer(answer: Answer) -> Answer:
            return await self._changed_before(command, answer)

        answer = await send_safely(self._client, command, second_answer)
        if isinstance(answer, ItemsStillLent):
            raise ItemsLent(self.name, answer.items)
        if isinstance(answer, UnknownItems):
            raise NotFound(self.name, f"item {answer.items[0]!r}")
        assert isinstance(answer, PoolChanged)
        return answer.leaving

    async def _changed_before(self, command: ChangePool, answer: Answer) -> Answer:
        """Interpret the answer to a second copy: if the change was already made, the first copy has made it."""
        unknown = isinstance(answer, UnknownItems) and set(answer.items) != set(command.items)
        if isinstance(answer, ItemsStillLent) or unknown:
            return answer
        counts = await self._snapshot(0)
        unavailable = await self._snapshot(counts.lent + counts.cooling)
        leaving = {item.item for item in unavailable.items if item.leaving and item.state in ("lent", "offered")}
        by_command = leaving - set(command.items) if command.operation == "set" else leaving & set(command.items)
        return PoolChanged(0, 0, tuple(sorted(by_command)))

    async def _snapshot(self, limit: int) -> PoolSnapshot:
        answer = await send_safely(self._client, GetPoolStats(self.name, limit, self._options.kind))
        assert isinstance(answer, PoolSnapshot)
        return answer

    async def _stats(self, limit: int) -> PoolStats:
        """Return the statistics, with at most `limit` items and waiters."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= ITEMS_MAX:
            raise InvalidConfig("limit", limit, f"it must be a whole number from 0 to {ITEMS_MAX}")
        now = await self._snapshot(limit)
        items = tuple(
            ItemStatus(
                item.item,
                item.state,
                item.leaving,
                item.fence,
                item.used,
                None if item.since_ms < 0 else item.since_ms / 1000,
                item.remaining_ms / 1000,
                Holder.unpacked(item.holder) if item.holder else None,
            )
            for item in now.items
        )
        waiters = tuple(Holder.unpacked(waiter.holder) for waiter in now.waiters)
        return PoolStats(self.name, now.size, now.lent, now.cooling, now.free, now.waiting, items, waiters, now.trouble)


class PoolBase(PoolCommands):
    """A pool: its settings, checked before any I/O, and the changes of its items."""

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
        cooldown_ms = duration_ms(cool, setting="cool")
        if not callable(on_loss) and on_loss not in policies:
            raise InvalidConfig("on_loss", on_loss, f"it must be {' or '.join(policies)}, or callable with the item")
        if callable(on_loss) and is_coroutine_function(on_loss):
            raise InvalidConfig("on_loss", on_loss, "it must be a plain function, because it is called and not awaited")
        self._options = PoolOptions(
            POOL,
            cooldown_ms=cooldown_ms,
            expiry_cooldown_ms=cooldown_ms if on_death is None else duration_ms(on_death, setting="on_death"),
            cool_on=checked_errors(cool_on),
            on_loss=on_loss,
        )
        self._confirm = confirm is not None and bool(checked_confirm(client, confirm))

    def __repr__(self) -> str:
        return f"<pool {self.name!r} on {self._client.url}>"

    def _timeout_of(self, timeout: Seconds | Unset | None) -> int | None:
        return self._timeout_ns if isinstance(timeout, Unset) else timeout_ns(timeout)

    def _item_fields(self, tag: str | None, share: float, info: dict[str, Any] | None) -> tuple[Any, ...]:
        """Return the arguments of a new item's lease."""
        client, options = self._client, self._options
        borrow = BorrowOptions(options, *checked_share(tag, share))
        holder, packed = client.holder, client.packed
        if info is not None:
            more = this_process(holder.label, info).info  # checked
            holder = this_process(holder.label, {**holder.info, **more})
            packed = holder.packed()
        on_loss = options.on_loss if callable(options.on_loss) else None
        return (borrow, client, self.name, self._ttl_ms, holder, packed, on_loss, self._confirm)

    async def _cool(self, item: str, seconds: Seconds) -> None:
        """Start the cooldown of an item that is not lent; 0 ends it."""
        command = CoolItem(self.name, checked_name(item, "an item"), duration_ms(seconds), self._options.kind)
        answer = await send_safely(self._client, command)
        if isinstance(answer, ItemsStillLent):
            raise ItemsLent(self.name, answer.items)
        if isinstance(answer, UnknownItems):
            raise NotFound(self.name, f"item {item!r}")

    async def _break_item(self, item: str, reason: str, fence: int | None = None) -> None:
        """End the lease of an item by force; with `fence`, only that lease. The item cools as after an expiry."""
        checked_reason(reason)
        checked_name(item, "an item")
        if fence is None:
            fence = (await self._lent(item)).fence
        command = BreakItem(self.name, item, fence, reason, self._options.kind)
        answer = await send_safely(self._client, command, _broken_before)
        if isinstance(answer, NotHeld):
            raise NotFound(self.name, f"lease of {item!r} with fence {fence} any more")

    async def _lent(self, item: str) -> ItemStatus:
        """Return the status of an item that is lent or offered; `NotFound` if it is neither."""
        counts = await self._stats(0)
        now = await self._stats(min(ITEMS_MAX, counts.lent + counts.cooling))  # the engine lists lent items first
        found = next((each for each in now.items if each.name == checked_name(item, "an item")), None)
        if found is None or found.state not in ("lent", "offered"):
            raise NotFound(self.name, f"lent item {item!r}")
        return found


async def _broken_before(answer: Answer) -> Answer:
    """Interpret the answer to a second copy: if the fence is gone, the first copy has ended its lease."""
    return Released() if isinstance(answer, NotHeld) else answer


class ItemBase(LeaseBase):
    """The lease of an item. Its name is the pool's name until the grant, and then the item's name."""

    _item = ""
    _cooldown_ms = 0

    def __init__(self, borrow: BorrowOptions, client: Client, name: str, *fields: Any) -> None:
        self._borrow = borrow
        self._pool = name
        super().__init__(client, name, *fields)

    @property
    def pool(self) -> str:
        """The name of the pool."""
        return self._pool

    @property
    def info(self) -> dict[str, Any]:
        """The borrower's `info` about this use, for people to read."""
        return self._holder.info

    def __repr__(self) -> str:
        return f"<item {self._item!r} of {self._pool!r} fence={self._fence} {self.state}>"

    # Its commands to the engine.

    def acquire_command(self, wait: bool) -> AcquireCommand:
        """Return the borrow; with `wait`, one that joins the waiting line."""
        options, tag, share_ppm = self._borrow
        fields = (self._pool, self.token, self.packed_holder, self.ttl_ms, wait, options.expiry_cooldown_ms)
        return Borrow(*fields, tag, share_ppm, options.permits, options.kind)

    def renew_command(self, ttl_ms: int) -> Command:
        """Return the renewal for `ttl_ms`."""
        return Extend(self._pool, self._item, self.token, ttl_ms, self._borrow.pool.kind)

    def release_command(self, to: str) -> ReleaseLease | Return:  # noqa: ARG002 - the next waiter gets the item
        """Return the command that returns the item; `to` has no meaning for an item."""
        return Return(self._pool, self._item, self.token, self._cooldown_ms, self._resent, self._borrow.pool.kind)

    def undo_command(self) -> Undo | UndoBorrow:
        """Return the command that undoes the borrow."""
        return UndoBorrow(self._pool, self.token, self._borrow.pool.kind)

    def heartbeat_command(self) -> Command:
        """Return the heartbeat of this client's waiters."""
        return PoolHeartbeat(self._pool, self._borrow.pool.kind)

    def late_release_command(self, command: ReleaseCommand) -> ReleaseCommand | None:  # noqa: ARG002
        """Return `None`: the outcome of the work is uncertain, so the lease must expire, and then the item cools."""
        return None

    def _item_granted(self, answer: Granted) -> None:
        self._item = self.name = answer.item

    @property
    def identity(self) -> LeaseIdentity:
        """Every name of this lease. Events show the pool's name too, because an item's name alone says little."""
        pool, kind = self._pool, self._borrow.pool.kind
        shown = self.name if self.name == pool else f"{pool}/{self.name}"
        return LeaseIdentity(self.name, f"{pool}\x00{kind}\x00{self._item}", pool_resource(pool, kind), shown, pool)

    @property
    def cooldown_ns(self) -> int:
        """How long the item cools after its lease expires."""
        return self._borrow.pool.expiry_cooldown_ms * NS_PER_MS

    def _cool_on_error(self, error: BaseException | None) -> None:
        """Let the item cool after the block if its error says that the outcome is uncertain."""
        options = self._borrow.pool
        if error is not None and any_of(error, options.cool_on):
            self._cooldown_ms = max(self._cooldown_ms, options.cooldown_ms)

    def _cool_for(self, seconds: Seconds | Unset) -> None:
        """Set the cooldown that the item gets when it is returned."""
        cooldown_ms = self._borrow.pool.cooldown_ms if isinstance(seconds, Unset) else duration_ms(seconds)
        if self.state in (RELEASING, ENDED):
            raise NotOwner(self.name, "it was already returned; for an item that is not lent, call cool() of the pool")
        self._cooldown_ms = cooldown_ms
