"""The blocking face: for threads. `holdfast.aio` has the same names, awaited."""

from holdfast.blocking.client import Holdfast, connect
from holdfast.blocking.leader import Leader, Term
from holdfast.blocking.lease import Lease, Signal
from holdfast.blocking.lock import Lock
from holdfast.blocking.pool import Item, Pool
from holdfast.blocking.rwlock import Access, RWLock, Side
from holdfast.blocking.semaphore import Seat, Semaphore

__all__ = [
    "Access",
    "Holdfast",
    "Item",
    "Leader",
    "Lease",
    "Lock",
    "Pool",
    "RWLock",
    "Seat",
    "Semaphore",
    "Side",
    "Signal",
    "Term",
    "connect",
]
