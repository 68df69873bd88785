"""Commands about leases, and their answers."""

from __future__ import annotations

from typing import NamedTuple


class Acquire(NamedTuple):
    """Acquire the lease; with `wait`, take a place in the waiting line if another holder has it.

    `holder` is the packed `Holder` of the sender. Sent again by the holder, the command answers the same fence and
    restarts the ttl. Sent again by a waiter, it keeps the place, confirms an offer, and counts as a heartbeat. Sent by
    a waiter without `wait`, it is the last request: the lease is granted now, or the waiter leaves the waiting line.
    """

    name: str
    token: str
    holder: str
    ttl_ms: int
    wait: bool


class Renew(NamedTuple):
    """Restart the ttl of a lease that this token still holds. An expired lease is never brought back."""

    name: str
    token: str
    ttl_ms: int


class ReleaseLease(NamedTuple):
    """Give the lease back; `to` is the token of the waiter that gets it next, if it still waits.

    With `tombstone`, the engine remembers the token as ended: needed if an acquire was sent more than once, because an
    older copy may still arrive.
    """

    name: str
    token: str
    tombstone: bool = False
    to: str = ""


class Undo(NamedTuple):
    """End the lease, the offer or the wait of a token that no caller has, and refuse the token from now on."""

    name: str
    token: str


class Break(NamedTuple):
    """End the lease with this fence by force, and keep the reason for its holder.

    The command names the fence, so that a second copy cannot end the lease of the next holder.
    """

    name: str
    fence: int
    reason: str


class WaiterHeartbeat(NamedTuple):
    """The heartbeat of this client's waiters for a name. The engine also applies the expiries that are due there."""

    name: str


class WakeHolder(NamedTuple):
    """Wake the holder, because its mailbox has a message. Only a part of other commands."""

    name: str


class Show(NamedTuple):
    """Look up who holds and who waits. Changes nothing."""

    name: str


class Granted(NamedTuple):
    """The token holds the lease with this fence; of a pool, the lease of this item.

    `life`: on an engine that may forget, the number of this record among the records that the name has had; 0 on other
    engines.
    """

    fence: int
    item: str = ""
    life: int = 0


class Busy(NamedTuple):
    """Another holder has the lease. `position` is the number of waiters ahead; `None` if this token is not in line.

    Of a pool, the first lease of an item ends in `remaining_ms` unless renewed. An engine that may forget adds
    `all_ms`, after which the leases of all items would have ended, and `life`, as in `Granted`.
    """

    holder: str
    fence: int
    remaining_ms: int
    position: int | None
    reason: str = "busy"
    all_ms: int = 0
    life: int = 0


class Refused(NamedTuple):
    """The token has ended (released, undone or broken) and will never hold again."""

    reason: str


class Renewed(NamedTuple):
    """The ttl starts again."""

    kind: str = "renewed"


class Released(NamedTuple):
    """The lease is free, or this same token freed it before."""

    kind: str = "released"


class NotHeld(NamedTuple):
    """This token does not hold the name. `reason`: expired, released, undone, broken; `detail` is for people."""

    reason: str
    detail: str = ""


class Done(NamedTuple):
    """The engine has applied the command."""

    kind: str = "done"


class HeartbeatReceived(NamedTuple):
    """The answer to a heartbeat. The present lease or offer ends in `remaining_ms` unless renewed; 0 if there is none.

    `offered` is the token of a waiter of this client that has an unconfirmed offer, or empty. `all_ms` is as in `Busy`.
    `near`: a waiter of this client is near the front of the line, so the next heartbeat is due soon.
    """

    remaining_ms: int
    offered: str = ""
    all_ms: int = 0
    near: bool = False


class LeaseParty(NamedTuple):
    """One holder or waiter, for people to read."""

    holder: str
    token: str
    fence: int
    since_ms: int
    remaining_ms: int


class LeaseInfo(NamedTuple):
    """The holder of a name and its waiters, in order. `offered`: the holder has not confirmed its offer yet."""

    fence: int
    holder: LeaseParty | None
    offered: bool
    waiters: tuple[LeaseParty, ...]
