"""Pools: borrow one of many items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from holdfast.aio.lease import Lease, cancel_on_loss, work_outcome
from holdfast.clock import Seconds
from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.pool.pool import ItemBase, PoolBase
from holdfast.errors import NotAcquired

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from holdfast.core.pool.pool import PoolStats


class Item(ItemBase, Lease):
    """The lease of a pool item: exclusively yours until it is returned, lost or expired. Use it in `async with`."""

    async def extend(self, ttl: Seconds) -> None:
        """Make the lease last longer; raise `LeaseLost` if it is no longer held.

        `ttl`: the lease lasts at least this many seconds from now, and the same after each renewal.
        """
        await self._extend(ttl)

    async def cool(self, seconds: Seconds | Unset = UNSET) -> None:
        """Return the item, but let it cool first, because the outcome of its use is uncertain.

        `seconds`: how long it stays unavailable; by default the pool's `cool`. Raise `NotOwner` if the item was already
        returned: another borrower may have it by now.
        """
        self._cool_for(seconds)
        await self.release_steps()

    async def __aenter__(self) -> Item:
        self.check()
        cancel_on_loss(self, self._borrow.pool.on_loss)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._cool_on_error(error)
        return await super().__aexit__(kind, work_outcome(self, error), trace)


class Pool(PoolBase):
    """Named items, each lent to one borrower at a time, the least recently acquired first."""

    async def borrow(
        self,
        timeout: Seconds | Unset | None = UNSET,
        *,
        tag: str | None = None,
        share: float = 1.0,
        info: dict[str, Any] | None = None,
    ) -> Item:
        """Borrow an item; raise `NotAcquired` when the timeout ends.

        `timeout`: seconds to wait; `None` waits for ever, `0` asks once. Without it, the pool's own timeout. `tag`,
        `share`: let the borrowers with this tag use only this part (0 to 1) of the items, always the same ones.
        `info`: a note about this use, for people to read.
        """
        wait_ns = self._timeout_of(timeout)
        item = Item(*self._item_fields(tag, share, info))
        try:
            await item.acquire_steps(wait_ns)
            item.delivered = True
            return item  # noqa: TRY300 - an interrupt may arrive even here
        except BaseException:
            item.undo()
            raise

    async def try_borrow(
        self, *, tag: str | None = None, share: float = 1.0, info: dict[str, Any] | None = None
    ) -> Item | None:
        """Return an item, or `None` if no item is available. Does not wait.

        `tag`, `share`, `info`: as in `borrow`.
        """
        try:
            return await self.borrow(0, tag=tag, share=share, info=info)
        except NotAcquired:
            return None

    async def set_items(self, items: Iterable[str], *, leave: bool = False) -> tuple[str, ...]:
        """Replace the items of the pool by `items`; return the names of the items that leave when they are returned.

        `leave`: with it, a lent item leaves when it is returned. Without it, a lent item that is missing in `items`
        raises `ItemsLent`, and nothing changes.
        """
        return await self._change("set", items, leave=leave)

    async def add(self, items: Iterable[str]) -> None:
        """Add `items` to the pool. Items that it already has stay as they are."""
        await self._change("add", items, leave=False, not_empty=True)

    async def remove(self, items: Iterable[str], *, leave: bool = False) -> tuple[str, ...]:
        """Remove `items` from the pool; return the names of those that leave when they are returned.

        `leave`: as in `set_items`. Raise `NotFound` if the pool lacks one of them.
        """
        return await self._change("remove", items, leave=leave, not_empty=True)

    async def cool(self, item: str, seconds: Seconds) -> None:
        """Make an item that is not lent unavailable for a while.

        `item`: its name; `seconds`: how long from now, 0 ends its cooldown. Raise `ItemsLent` if it is lent.
        """
        await self._cool(item, seconds)

    async def break_item(self, item: str, reason: str) -> None:
        """End the lease of an item by force; the item cools as after an expiry.

        `item`: its name; `reason`: text for the borrower, whose lease is lost.
        """
        await self._break_item(item, reason)

    async def stats(self, limit: int = 1000) -> PoolStats:
        """Return statistics of the pool. `limit`: the maximum number of listed items, lent and cooling ones first."""
        return await self._stats(limit)
