"""Pools: the way to one of many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from holdfast.aio.lease import Lease, cancel_on_loss, work_outcome
from holdfast.clock import Seconds
from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.pool import pool
from holdfast.errors import NotAcquired

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from holdfast.core.pool.pool import PoolStats


class Item(pool.ItemBase, Lease):
    """Like `blocking.Item`, awaited."""

    async def extend(self, ttl: Seconds) -> None:
        """Like `blocking.Item.extend`, awaited."""
        await pool.extend(self, ttl)

    async def cool(self, seconds: Seconds | Unset = UNSET) -> None:
        """Like `blocking.Item.cool`, awaited."""
        self._cool_for(seconds)
        await self.release_steps()

    async def __aenter__(self) -> Item:
        self.check()
        cancel_on_loss(self, self._terms.pool._on_loss)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._cools_on(error)
        return await super().__aexit__(kind, work_outcome(self, error), trace)


class Pool(pool.PoolBase):
    """Like `blocking.Pool`, awaited."""

    async def borrow(
        self,
        timeout: Seconds | Unset | None = UNSET,
        *,
        tag: str | None = None,
        share: float = 1.0,
        info: dict[str, Any] | None = None,
    ) -> Item:
        """Like `blocking.Pool.borrow`, awaited."""
        wait_ns = self._timeout_of(timeout)
        item = Item(*self._item_fields(tag, share, info))
        try:
            await item.acquire_steps(wait_ns)
            item.delivered = True
            return item  # noqa: TRY300 - an interrupt may strike even here
        except BaseException:
            item.undo()
            raise

    async def try_borrow(
        self, *, tag: str | None = None, share: float = 1.0, info: dict[str, Any] | None = None
    ) -> Item | None:
        """Like `blocking.Pool.try_borrow`, awaited."""
        try:
            return await self.borrow(0, tag=tag, share=share, info=info)
        except NotAcquired:
            return None

    async def set_items(self, items: Iterable[str], *, leave: bool = False) -> tuple[str, ...]:
        """Like `blocking.Pool.set_items`, awaited."""
        return await pool.change(self, "set", items, leave=leave)

    async def add(self, items: Iterable[str]) -> None:
        """Like `blocking.Pool.add`, awaited."""
        await pool.change(self, "add", items, leave=False, some=True)

    async def remove(self, items: Iterable[str], *, leave: bool = False) -> tuple[str, ...]:
        """Like `blocking.Pool.remove`, awaited."""
        return await pool.change(self, "remove", items, leave=leave, some=True)

    async def cool(self, item: str, seconds: Seconds) -> None:
        """Like `blocking.Pool.cool`, awaited."""
        await pool.cool(self, item, seconds)

    async def break_item(self, item: str, reason: str) -> None:
        """Like `blocking.Pool.break_item`, awaited."""
        await pool.break_item(self, item, reason)

    async def stats(self, limit: int = 1000) -> PoolStats:
        """Like `blocking.Pool.stats`, awaited."""
        return await pool.stats(self, limit)
