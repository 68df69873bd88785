"""What is asked about pools, semaphores and read-write locks, and what is answered."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.commands.lease import LeaseParty

# What many rights are kept under: a pool of named items, the numbered seats of a semaphore, a read-write lock.
POOL, SEMAPHORE, RWLOCK = "pool", "semaphore", "rwlock"
READ, WRITE = "read", "write"
WHOLE_PPM = 1_000_000


class Borrow(NamedTuple):
    """Lend me one item, the least recently acquired; with `wait`, keep me a place in the queue if you cannot.

    Sent twice it answers like `Acquire`. `cooldown_ms` is how long the item is kept from everybody if its lease lapses. A
    `tag` may use a fixed part of the pool and no more, in millionths. `permits` makes the seats that are not there yet.
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
    """Restart the ttl of an item that is still mine. A lapsed lease is never brought back."""

    name: str
    item: str
    token: str
    ttl_ms: int
    kind: str = POOL


class Return(NamedTuple):
    """Give the item back; with `cooldown_ms` it is kept from everybody that long. `tombstone` as in `Release`."""

    name: str
    item: str
    token: str
    cooldown_ms: int = 0
    tombstone: bool = False
    kind: str = POOL


class UndoBorrow(NamedTuple):
    """Nobody owns what this token may have been lent: end it, and refuse it from now on."""

    name: str
    token: str
    kind: str = POOL


class BreakItem(NamedTuple):
    """End the lease of an item under this fence by force; the item rests as after a death."""

    name: str
    item: str
    fence: int
    reason: str
    kind: str = POOL


class CoolItem(NamedTuple):
    """Keep an item that nobody has from everybody, for so long from now; 0 ends its cooldown."""

    name: str
    item: str
    cooldown_ms: int
    kind: str = POOL


class ChangePool(NamedTuple):
    """Add items, remove them, or have these and no others (`how`: add, remove, set).

    An item that is lent cannot be taken away: the change is refused, or with `leave` the item goes when it comes back.
    `seed`, an odd number, spreads the order in which new items are used for the first time.
    """

    name: str
    how: str
    items: tuple[str, ...]
    leave: bool
    seed: int
    permits: int = 0
    kind: str = POOL


class PoolHeartbeat(NamedTuple):
    """Like `WaiterHeartbeat`, for those who wait for an item."""

    name: str
    kind: str = POOL


class GetPoolStats(NamedTuple):
    """How the pool stands, with no more than so many of its items, and of those who wait."""

    name: str
    limit: int
    kind: str = POOL


class ItemSnapshot(NamedTuple):
    """One item, as people see it. `state`: free, offered, lent, cooling; `holder` is empty unless somebody has it.

    `since_ms` counts from its last acquisition, -1 if there was none; `remaining_ms` until it comes back by itself.
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
    """How a pool stands: figures first; what could not be listed beside them is said in `trouble`."""

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
    """The pool has these items now: so many came, so many went, and these go when they come back."""

    added: int
    removed: int
    leaving: tuple[str, ...]


class ItemsStillLent(NamedTuple):
    """Nothing was changed: these items are lent."""

    items: tuple[str, ...]


class UnknownItems(NamedTuple):
    """Nothing was changed: the pool has no such items."""

    items: tuple[str, ...]
    kind: str = "unknown"
