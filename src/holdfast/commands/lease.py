"""What is asked about leases, and what is answered."""

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
    holder: str
    ttl_ms: int
    wait: bool


class Renew(NamedTuple):
    """Restart the ttl of a lease that is still mine. A lapsed lease is never brought back."""

    name: str
    token: str
    ttl_ms: int


class Release(NamedTuple):
    """Give the lease back; `to` names the waiter (by token) that is to have it next, if it still waits.

    `tombstone` asks the engine to remember the token as ended: needed when an acquire was sent more than once, because the
    first copy may still be on its way.
    """

    name: str
    token: str
    tombstone: bool = False
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


class WaiterHeartbeat(NamedTuple):
    """This client lives, and so do its waiters under this name. Also brings the name to the present."""

    name: str


class WakeHolder(NamedTuple):
    """Wake whoever holds: there is something for it. A part of other commands only."""

    name: str


class Show(NamedTuple):
    """Who holds, who waits. Changes nothing."""

    name: str


class Granted(NamedTuple):
    """The lease is yours, under this fence; of a pool, it is that of this item.

    `life` tells records of one name apart that came after each other, where an engine may forget; 0 where none does.
    """

    fence: int
    item: str = ""
    life: int = 0


class Busy(NamedTuple):
    """Somebody else has it. `position` counts the waiters ahead of you; `None` means that you are not in the queue.

    Of many rights the next comes back in `remaining_ms`. An engine that may forget tells more: in `all_ms` all would
    have come back by themselves, and `life` is as in `Granted`.
    """

    holder: str
    fence: int
    remaining_ms: int
    position: int | None
    reason: str = "busy"
    all_ms: int = 0
    life: int = 0


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


class HeartbeatReceived(NamedTuple):
    """Heard. The present lease or offer ends in `remaining_ms` unless it is renewed; 0 if there is none.

    `offered` is the token of a waiter of this client to whom the lease is offered just now, or empty. `all_ms` is as in
    `Busy`.
    """

    remaining_ms: int
    offered: str = ""
    all_ms: int = 0


class LeaseParty(NamedTuple):
    """One holder or waiter, as people see it."""

    holder: str
    token: str
    fence: int
    since_ms: int
    remaining_ms: int


class LeaseInfo(NamedTuple):
    """Who holds a name and who waits for it, in order. `offered`: the holder has not confirmed yet."""

    fence: int
    holder: LeaseParty | None
    offered: bool
    waiters: tuple[LeaseParty, ...]
