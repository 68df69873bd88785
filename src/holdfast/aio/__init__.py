"""The asyncio face: the names and shapes of the blocking one, awaited.

Leases are kept by a thread, so that a blocked event loop loses none. Besides the policies of the blocking face there is
`on_loss="cancel"`: it cancels the task that entered the block, as `asyncio.timeout` does, and the block ends in
`LeaseLost` once the task has settled.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import later
from holdfast.aio.budget import Budget, Reservation
from holdfast.aio.client import Holdfast, connect
from holdfast.aio.leader import Leader, Term
from holdfast.aio.lease import Lease, Signal
from holdfast.aio.limit import Limiter
from holdfast.aio.lock import Lock
from holdfast.aio.once import First, Once
from holdfast.aio.pool import Item, Pool
from holdfast.aio.registry import Claimed, Directory
from holdfast.aio.rwlock import Access, RWLock, Side
from holdfast.aio.semaphore import Seat, Semaphore

if TYPE_CHECKING:
    from holdfast.aio.ownership import KeyOwner, Work
    from holdfast.aio.queue import Consumer, Dlq, Message, Partitioned, Queue, Worker

__all__ = [
    "Access",
    "Budget",
    "Claimed",
    "Consumer",
    "Directory",
    "Dlq",
    "First",
    "Holdfast",
    "Item",
    "KeyOwner",
    "Leader",
    "Lease",
    "Limiter",
    "Lock",
    "Message",
    "Once",
    "Partitioned",
    "Pool",
    "Queue",
    "RWLock",
    "Reservation",
    "Seat",
    "Semaphore",
    "Side",
    "Signal",
    "Term",
    "Work",
    "Worker",
    "connect",
]

# A quarter of the face, and few programs have a queue: loaded by whoever makes one, or names what comes with it.
_LATER = {
    "holdfast.aio.ownership": ("KeyOwner", "Work"),
    "holdfast.aio.queue": ("Consumer", "Dlq", "Message", "Partitioned", "Queue", "Worker"),
}
__getattr__, __dir__ = later(__name__, _LATER)
