"""The commands and answers of pools, semaphores and read-write locks."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.commands.lease import LeaseParty

# The kinds of pool: named items, the numbered permits of a semaphore, a read-write lock.
POOL, SEMAPHORE, RWLOCK = "pool", "semaphore", "rwlock"
READ, WRITE = "read", "write"
# A share is counted in millionths of the pool; this is the whole pool.
WHOLE_PPM = 1_000_000


class Borrow(NamedTuple):
    """Lend one item, the least recently acquired; with `wait`, join the waiting line if no item is available.

    A resent `Borrow` is answered like a resent `Acquire`. `cooldown_ms`: how long the item stays unavailable if its
    lease expires. `tag` and `share_ppm` limit the borrower to a fixed part of the pool, in millionths. `permits`
    creates the permits of a semaphore that does not exist yet.
    """

    name: str
    token: str
    holder: str
    ttl_ms: int
    wait: bool
    cooldown_ms: int = 0
    tag: str = ""
    share_ppm: int = WHOLE_PPM
    permits: int = 0
    kind: str = POOL


class Extend(NamedTuple):
    """Restart the ttl of an item that the token still holds. An expired lease stays expired."""

    name: str
    item: str
    token: str
    ttl_ms: int
    kind: str = POOL


class Return(NamedTuple):
    """Return the item; it stays unavailable for `cooldown_ms`. `tombstone` as in `ReleaseLease`."""

    name: str
    item: str
    token: str
    cooldown_ms: int = 0
    tombstone: bool = False
    kind: str = POOL


class UndoBorrow(NamedTuple):
    """End the lease or the wait of a token that no caller has, and refuse the token from now on."""

    name: str
    token: str
    kind: str = POOL


class BreakItem(NamedTuple):
    """End the lease of an item under this fence by force; the item cools as after an expiry."""

    name: str
    item: str
    fence: int
    reason: str
    kind: str = POOL


class CoolItem(NamedTuple):
    """Make an item that is not lent unavailable for `cooldown_ms` from now; 0 ends its cooldown."""

    name: str
    item: str
    cooldown_ms: int
    kind: str = POOL


class ChangePool(NamedTuple):
    """Add items, remove items, or replace all items (`operation`: add, remove, set).

    The pool keeps an item that is lent: it refuses the change, or with `leave` removes the item when it is returned.
    `seed`, an odd number, spreads the order in which new items are lent for the first time.
    """

    name: str
    operation: str
    items: tuple[str, ...]
    leave: bool
    seed: int
    permits: int = 0
    kind: str = POOL


class PoolHeartbeat(NamedTuple):
    """Report that this client's waiters for an item are alive, like `WaiterHeartbeat` for a lease."""

    name: str
    kind: str = POOL


class GetPoolStats(NamedTuple):
    """Return statistics of the pool, and at most `limit` of its items and of its waiters."""

    name: str
    limit: int
    kind: str = POOL


class ItemSnapshot(NamedTuple):
    """One item, for people. `state`: free, offered, lent or cooling; `holder` is empty unless the item is lent.

    `since_ms`: time since the last acquisition, -1 before the first. `remaining_ms`: time until the lease, the offer or
    the cooldown ends by itself.
    """

    item: str
    state: str
    leaving: bool
    fence: int
    used: int
    since_ms: int
    remaining_ms: int
    holder: str


class PoolSnapshot(NamedTuple):
    """Statistics of a pool, some items and some waiters; `trouble` says why a listing is missing."""

    fence: int
    permits: int
    size: int
    lent: int
    cooling: int
    free: int
    waiting: int
    items: tuple[ItemSnapshot, ...]
    waiters: tuple[LeaseParty, ...]
    trouble: str = ""


class PoolChanged(NamedTuple):
    """The change was made: the numbers of items added and removed, and the lent items that leave when returned."""

    added: int
    removed: int
    leaving: tuple[str, ...]


class ItemsStillLent(NamedTuple):
    """Nothing was changed, because these items are lent."""

    items: tuple[str, ...]


class UnknownItems(NamedTuple):
    """Nothing was changed, because the pool has no such items."""

    items: tuple[str, ...]
    kind: str = "unknown"
