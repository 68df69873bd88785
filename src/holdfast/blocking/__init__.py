"""The blocking face: for threads. `holdfast.aio` has the same names, awaited."""

from typing import TYPE_CHECKING

from holdfast._lazy import later
from holdfast.blocking.budget import Budget, Reservation
from holdfast.blocking.client import Holdfast, connect
from holdfast.blocking.leader import Leader, Term
from holdfast.blocking.lease import Lease, Signal
from holdfast.blocking.limit import Limiter
from holdfast.blocking.lock import Lock
from holdfast.blocking.once import First, Once
from holdfast.blocking.pool import Item, Pool
from holdfast.blocking.registry import Claimed, Directory
from holdfast.blocking.rwlock import Access, RWLock, Side
from holdfast.blocking.semaphore import Seat, Semaphore

if TYPE_CHECKING:
    from holdfast.blocking.ownership import KeyOwner, Work
    from holdfast.blocking.queue import Consumer, Dlq, Message, Partitioned, Queue, Worker

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
    "holdfast.blocking.ownership": ("KeyOwner", "Work"),
    "holdfast.blocking.queue": ("Consumer", "Dlq", "Message", "Partitioned", "Queue", "Worker"),
}
__getattr__, __dir__ = later(__name__, _LATER)
