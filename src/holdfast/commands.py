"""The vocabulary of engines: frozen questions and answers.

Named tuples, because they are quick to make and quick to import. What says nothing but its name carries that name, so
that it is neither empty nor equal to another.

An engine answers one command in one atomic step. Every command may be sent twice: it carries the token of the attempt
it belongs to, and the second answer is the same as the first. Times inside are milliseconds; fences are integers.
"""

from __future__ import annotations

from typing import NamedTuple


class Acquire(NamedTuple):
    """Give me the lease; with `wait`, keep me a place in the queue if you cannot.

    Sent again by the holder it answers the same fence and restarts the ttl. Sent again by a waiter it keeps the place,
    confirms an offer, and tells the engine that the waiter lives. Sent by a waiter without `wait` it is the last word:
    granted now, or out of the queue.
    """

    name: str
    token: str
    owner: str
    ttl_ms: int
    wait: bool


class Renew(NamedTuple):
    """Restart the ttl of a lease that is still mine. A lapsed lease is never brought back."""

    name: str
    token: str
    ttl_ms: int


class Release(NamedTuple):
    """Give the lease back; `to` names the waiter (by token) that is to have it next, if it still waits.

    `entomb` asks the engine to remember the token as ended: needed when an acquire was sent more than once, because the
    first copy may still be on its way.
    """

    name: str
    token: str
    entomb: bool = False
    to: str = ""


class Undo(NamedTuple):
    """Nobody owns what this token may have got: end it, and refuse it from now on."""

    name: str
    token: str


class Break(NamedTuple):
    """End the lease under this fence by force, and say why to its holder.

    The fence is part of the question, so that a second copy of the command cannot hit the next holder.
    """

    name: str
    fence: int
    reason: str


class Mark(NamedTuple):
    """This client lives, and so do its waiters under this name. Also brings the name to the present."""

    name: str


class Show(NamedTuple):
    """Who holds, who waits. Changes nothing."""

    name: str


# What many rights are kept under: a pool of named items, the numbered seats of a semaphore, a read-write lock.
POOL, SEATS, RW = "pool", "seats", "rw"
READ, WRITE = "read", "write"
WHOLE_PPM = 1_000_000


class Borrow(NamedTuple):
    """Lend me one item, the least recently acquired; with `wait`, keep me a place in the queue if you cannot.

    Sent twice it answers like `Acquire`. `rest_ms` is how long the item is kept from everybody if its lease lapses. A
    `tag` may use a fixed part of the pool and no more, in millionths. `permits` makes the seats that are not there yet.
    """

    name: str
    token: str
    owner: str
    ttl_ms: int
    wait: bool
    rest_ms: int = 0
    tag: str = ""
    share_ppm: int = WHOLE_PPM
    permits: int = 0
    roof: str = POOL


class Extend(NamedTuple):
    """Restart the ttl of an item that is still mine. A lapsed lease is never brought back."""

    name: str
    item: str
    token: str
    ttl_ms: int
    roof: str = POOL


class Return(NamedTuple):
    """Give the item back; with `cool_ms` it is kept from everybody that long. `entomb` as in `Release`."""

    name: str
    item: str
    token: str
    cool_ms: int = 0
    entomb: bool = False
    roof: str = POOL


class TakeBack(NamedTuple):
    """Nobody owns what this token may have been lent: end it, and refuse it from now on."""

    name: str
    token: str
    roof: str = POOL


class BreakItem(NamedTuple):
    """End the lease of an item under this fence by force; the item rests as after a death."""

    name: str
    item: str
    fence: int
    reason: str
    roof: str = POOL


class CoolItem(NamedTuple):
    """Keep an item that nobody has from everybody, for so long from now; 0 ends its cooldown."""

    name: str
    item: str
    cool_ms: int
    roof: str = POOL


class Change(NamedTuple):
    """Add items, remove them, or have these and no others (`how`: add, remove, set).

    An item that is lent cannot be taken away: the change is refused, or with `leave` the item goes when it comes back.
    `dice`, an odd number, spreads the order in which new items are used for the first time.
    """

    name: str
    how: str
    items: tuple[str, ...]
    leave: bool
    dice: int
    permits: int = 0
    roof: str = POOL


class Tend(NamedTuple):
    """Like `Mark`, for those who wait for an item."""

    name: str
    roof: str = POOL


class Count(NamedTuple):
    """How the pool stands, with no more than so many of its items, and of those who wait."""

    name: str
    limit: int
    roof: str = POOL


Command = (
    Acquire
    | Renew
    | Release
    | Undo
    | Break
    | Mark
    | Show
    | Borrow
    | Extend
    | Return
    | TakeBack
    | BreakItem
    | CoolItem
    | Change
    | Tend
    | Count
)
Asking = Acquire | Borrow
# Commands whose sender may have to wait for an answer that it likes.
ASKING: frozenset[type] = frozenset((Acquire, Borrow))


class Granted(NamedTuple):
    """The lease is yours, under this fence; of a pool, it is that of this item."""

    fence: int
    item: str = ""


class Busy(NamedTuple):
    """Somebody else has it. `position` counts the waiters ahead of you; `None` means that you are not in the queue."""

    owner: str
    fence: int
    remaining_ms: int
    position: int | None
    reason: str = "busy"


class Refused(NamedTuple):
    """This token has ended (released, undone or broken) and will never hold again."""

    reason: str


class Renewed(NamedTuple):
    """The ttl runs anew."""

    kind: str = "renewed"


class Released(NamedTuple):
    """The lease is free, or was already freed by this same token."""

    kind: str = "released"


class NotHeld(NamedTuple):
    """This token does not hold the name. `reason`: expired, released, undone, broken; `detail` is for people."""

    reason: str
    detail: str = ""


class Done(NamedTuple):
    """It is so now."""

    kind: str = "done"


class Marked(NamedTuple):
    """Heard. The present lease or offer ends in `remaining_ms` unless it is renewed; 0 if there is none.

    `offered` is the token of a waiter of this client to whom the lease is offered just now, or empty.
    """

    remaining_ms: int
    offered: str = ""


class Seat(NamedTuple):
    """One holder or waiter, as people see it."""

    owner: str
    token: str
    fence: int
    since_ms: int
    remaining_ms: int


class Standing(NamedTuple):
    """Who holds a name and who waits for it, in order. `offered`: the holder has not confirmed yet."""

    fence: int
    holder: Seat | None
    offered: bool
    waiters: tuple[Seat, ...]


class ItemSeen(NamedTuple):
    """One item, as people see it. `state`: free, offered, lent, cooling; `owner` is empty unless somebody has it.

    `since_ms` counts from its last acquisition, -1 if there was none; `remaining_ms` until it comes back by itself.
    """

    item: str
    state: str
    leaving: bool
    fence: int
    used: int
    since_ms: int
    remaining_ms: int
    owner: str


class Tally(NamedTuple):
    """How a pool stands: figures first; what could not be listed beside them is said in `trouble`."""

    fence: int
    permits: int
    size: int
    lent: int
    cooling: int
    free: int
    waiting: int
    items: tuple[ItemSeen, ...]
    waiters: tuple[Seat, ...]
    trouble: str = ""


class Changed(NamedTuple):
    """The pool has these items now: so many came, so many went, and these go when they come back."""

    added: int
    removed: int
    leaving: tuple[str, ...]


class Lent(NamedTuple):
    """Nothing was changed: these items are lent."""

    items: tuple[str, ...]


class Unknown(NamedTuple):
    """Nothing was changed: the pool has no such items."""

    items: tuple[str, ...]
    kind: str = "unknown"


Answer = (
    Granted
    | Busy
    | Refused
    | Renewed
    | Released
    | NotHeld
    | Done
    | Marked
    | Standing
    | Tally
    | Changed
    | Lent
    | Unknown
)
