"""Pools: the way to one of many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from holdfast.blocking.lease import Lease
from holdfast.clock import Seconds
from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.pool import pool
from holdfast.core.step import run
from holdfast.errors import NotAcquired

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from holdfast.core.pool.pool import PoolStats


class Item(pool.ItemBase, Lease):
    """The lease of an item: exclusively yours until it is given back, lost or expired. Use it in `with`."""

    def extend(self, ttl: Seconds) -> None:
        """Have it last at least so long from now, and after each renewal; `LeaseLost` if it is no longer held."""
        run(pool.extend(self, ttl))

    def cool(self, seconds: Seconds | Unset = UNSET) -> None:
        """Give it back, but keep it from everybody that long: how its use ended is uncertain.

        `NotOwner` if it was given back before: somebody else may have it by now.
        """
        self._cool_for(seconds)
        run(self.release_steps())

    def __enter__(self) -> Item:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._cools_on(error)
        return super().__exit__(kind, error, trace)


class Pool(pool.PoolBase):
    """Items with a name, lent to one borrower each: the least recently acquired first."""

    def borrow(
        self,
        timeout: Seconds | Unset | None = UNSET,
        *,
        tag: str | None = None,
        share: float = 1.0,
        info: dict[str, Any] | None = None,
    ) -> Item:
        """Wait for an item; `NotAcquired` when patience ends. A tag may use its share of the items and no others."""
        wait_ns = self._timeout_of(timeout)
        item = Item(*self._item_fields(tag, share, info))
        try:
            run(item.acquire_steps(wait_ns))
            item.delivered = True
            return item  # noqa: TRY300 - an interrupt may strike even here
        except BaseException:
            item.undo()
            raise

    def try_borrow(
        self, *, tag: str | None = None, share: float = 1.0, info: dict[str, Any] | None = None
    ) -> Item | None:
        """An item now, or `None`: one decision, no waiting."""
        try:
            return self.borrow(0, tag=tag, share=share, info=info)
        except NotAcquired:
            return None

    def set_items(self, items: Iterable[str], *, leave: bool = False) -> tuple[str, ...]:
        """Have these items and no others. One that is lent is not taken away: `ItemsLent`, and nothing is changed.

        With `leave` such items go when they come back; their names are the answer.
        """
        return run(pool.change(self, "set", items, leave=leave))

    def add(self, items: Iterable[str]) -> None:
        """Have these items too; what is there stays as it is."""
        run(pool.change(self, "add", items, leave=False, some=True))

    def remove(self, items: Iterable[str], *, leave: bool = False) -> tuple[str, ...]:
        """Have these items no more; as `set_items` where one is lent. `NotFound` where one is not there."""
        return run(pool.change(self, "remove", items, leave=leave, some=True))

    def cool(self, item: str, seconds: Seconds) -> None:
        """Keep an item that nobody has from everybody for so long from now; 0 ends its cooldown."""
        run(pool.cool(self, item, seconds))

    def break_item(self, item: str, reason: str) -> None:
        """End the lease of an item by force; its borrower is told why, and the item rests as after a death."""
        run(pool.break_item(self, item, reason))

    def stats(self, limit: int = 1000) -> PoolStats:
        """How the pool stands, with no more than so many items: those that are lent or cooling first."""
        return run(pool.stats(self, limit))
