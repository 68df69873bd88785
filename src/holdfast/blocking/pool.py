"""Pools: borrow one of many items. Semaphores and read-write locks are pools too."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal, Never, cast

from holdfast.blocking.lease import Lease
from holdfast.blocking.lock import Lock
from holdfast.clock import Seconds
from holdfast.commands import READ, WRITE
from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.pool.pool import ItemBase, PoolBase
from holdfast.core.pool.rwlock import RWLeaseBase, RWLockBase, RWLockModeBase
from holdfast.core.pool.semaphore import PermitBase, SemaphoreBase
from holdfast.core.step import run
from holdfast.errors import NotAcquired

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from holdfast.core.client import Client
    from holdfast.core.pool.pool import PoolStats


class Item(ItemBase, Lease):
    """The lease of a pool item: exclusively yours until it is returned, lost or expired. Use it in `with`."""

    def cool(self, seconds: Seconds | Unset = UNSET) -> None:
        """Return the item, but let it cool first, because the outcome of its use is uncertain.

        `seconds`: how long it stays unavailable; by default the pool's `cool`. Raise `NotOwner` if the item was already
        returned: another borrower may have it by now.
        """
        self._cool_for(seconds)
        run(self.release_steps())

    def __enter__(self) -> Item:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._cool_on_error(error)
        return super().__exit__(kind, error, trace)


class Pool(PoolBase):
    """Named items, each lent to one borrower at a time, the least recently acquired first."""

    def borrow(
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
            run(item.acquire_steps(wait_ns))
            item.delivered = True
            return item  # noqa: TRY300 - an interrupt may arrive even here
        except BaseException:
            item.undo()
            raise

    def try_borrow(
        self, *, tag: str | None = None, share: float = 1.0, info: dict[str, Any] | None = None
    ) -> Item | None:
        """Return an item, or `None` if no item is available. Does not wait.

        `tag`, `share`, `info`: as in `borrow`.
        """
        try:
            return self.borrow(0, tag=tag, share=share, info=info)
        except NotAcquired:
            return None

    def set_items(self, items: Iterable[str], *, leave: bool = False) -> tuple[str, ...]:
        """Replace the items of the pool by `items`; return the names of the items that leave when they are returned.

        `leave`: with it, a lent item leaves when it is returned. Without it, a lent item that is missing in `items`
        raises `ItemsLent`, and nothing changes.
        """
        return run(self._change("set", items, leave=leave))

    def add(self, items: Iterable[str]) -> None:
        """Add `items` to the pool. Items that it already has stay as they are."""
        run(self._change("add", items, leave=False, not_empty=True))

    def remove(self, items: Iterable[str], *, leave: bool = False) -> tuple[str, ...]:
        """Remove `items` from the pool; return the names of those that leave when they are returned.

        `leave`: as in `set_items`. Raise `NotFound` if the pool lacks one of them.
        """
        return run(self._change("remove", items, leave=leave, not_empty=True))

    def cool(self, item: str, seconds: Seconds) -> None:
        """Make an item that is not lent unavailable for a while.

        `item`: its name; `seconds`: how long from now, 0 ends its cooldown. Raise `ItemsLent` if it is lent.
        """
        run(self._cool(item, seconds))

    def break_item(self, item: str, reason: str) -> None:
        """End the lease of an item by force; the item cools as after an expiry.

        `item`: its name; `reason`: text for the borrower, whose lease is lost.
        """
        run(self._break_item(item, reason))

    def stats(self, limit: int = 1000) -> PoolStats:
        """Return statistics of the pool. `limit`: the maximum number of listed items, lent and cooling ones first."""
        return run(self._stats(limit))


class Permit(PermitBase, Lease):
    """The lease of a permit: it has a number and a fence of its own."""


class Semaphore(SemaphoreBase, Lock):
    """A semaphore: a fixed number of permits. Use it like a lock."""

    _lease = Permit

    def resize(self, permits: int) -> None:
        """Change the number of permits for all users.

        `permits`: the new number. Permits above it disappear when they are released.
        """
        run(self._resize(permits))

    def stats(self, limit: int = 1000) -> PoolStats:
        """Return the number of permits, their holders and the waiters. `limit`: the maximum number of each."""
        return run(self._stats(limit))


class RWLease(RWLeaseBase, Lease):
    """The lease of a reader or of the writer."""


class RWLockMode(RWLockModeBase, Lock):
    """One mode of a read-write lock, reading or writing. Use it like a lock."""

    _lease = RWLease

    def acquire(self, timeout: Seconds | Unset | None = UNSET, **unknown: Never) -> RWLease:
        """Acquire the lease of a reader or of the writer; raise `NotAcquired` when the timeout ends.

        `timeout`: seconds to wait; `None` waits for ever, `0` asks once. Without it, the lock's own timeout.
        `unknown`: any other keyword raises an error; for an option of redis-py, the error names the option of Holdfast.
        """
        self._refuse_other_mode(threading.get_ident())
        return cast("RWLease", super().acquire(timeout, **unknown))

    def __enter__(self) -> Lease:
        self._refuse_other_mode(threading.get_ident())
        return super().__enter__()


class RWLock(RWLockBase):
    """A read-write lock: many readers or one writer. `with rw.read():` or `with rw.write() as lease:`."""

    def __init__(self, client: Client, name: str, **settings: Any) -> None:
        self._reading = RWLockMode(client, name, mode=READ, **settings)
        self._writing = RWLockMode(client, name, mode=WRITE, **settings)
        super().__init__(client, self._reading)

    def read(self) -> RWLockMode:
        """Return the lock for readers: any number of them hold it at once, while no writer does."""
        return self._reading

    def write(self) -> RWLockMode:
        """Return the lock for writers: one writer holds it alone, under a fence above all earlier ones."""
        return self._writing

    def stats(self, limit: int = 1000) -> PoolStats:
        """Return the holders and the waiters. `limit`: the maximum number of each."""
        return run(self._stats(limit))
