"""The blocking face, for threads. `holdfast.aio` has the same names, awaited."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports
from holdfast.blocking.client import Holdfast, connect
from holdfast.blocking.leader import Leader, Leading, Term
from holdfast.blocking.lease import Lease, LossEvent
from holdfast.blocking.limit import Budget, RateLimiter, Reservation
from holdfast.blocking.lock import LeaseGroup, Lock, LockMany
from holdfast.blocking.once import Once, OnceClaim
from holdfast.blocking.pool import Item, Permit, Pool, RWLease, RWLock, RWLockMode, Semaphore
from holdfast.blocking.registry import Registry, RegistryLease

if TYPE_CHECKING:
    from holdfast.blocking.ownership import Assignment, Owner
    from holdfast.blocking.queue import Consumer, DeadLetterQueue, Message, PartitionedQueue, Queue, Worker

__all__ = [
    "Assignment",
    "Budget",
    "Consumer",
    "DeadLetterQueue",
    "Holdfast",
    "Item",
    "Leader",
    "Leading",
    "Lease",
    "LeaseGroup",
    "Lock",
    "LockMany",
    "LossEvent",
    "Message",
    "Once",
    "OnceClaim",
    "Owner",
    "PartitionedQueue",
    "Permit",
    "Pool",
    "Queue",
    "RWLease",
    "RWLock",
    "RWLockMode",
    "RateLimiter",
    "Registry",
    "RegistryLease",
    "Reservation",
    "Semaphore",
    "Term",
    "Worker",
    "connect",
]

# These modules are a quarter of the face, and few programs have a queue: the first use of a name imports them.
_LATER = {
    "holdfast.blocking.ownership": ("Owner", "Assignment"),
    "holdfast.blocking.queue": ("Consumer", "DeadLetterQueue", "Message", "PartitionedQueue", "Queue", "Worker"),
}
__getattr__, __dir__ = lazy_exports(__name__, _LATER)
