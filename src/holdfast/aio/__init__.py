"""The asyncio face: the same names as in the blocking face, as coroutines.

A thread renews the leases, so that a blocked event loop loses none. Besides the policies of the blocking face there is
`on_loss="cancel"`: it cancels the task that entered the block, as `asyncio.timeout` does, and the block raises
`LeaseLost` once the task has finished.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports
from holdfast.aio.client import Holdfast, connect
from holdfast.aio.leader import Leader, Leading, Term
from holdfast.aio.lease import Lease, LossEvent
from holdfast.aio.limit import Budget, RateLimiter, Reservation
from holdfast.aio.lock import LeaseGroup, Lock, LockMany
from holdfast.aio.once import Once, OnceClaim
from holdfast.aio.pool import Item, Permit, Pool, RWLease, RWLock, RWLockMode, Semaphore
from holdfast.aio.registry import Registry, RegistryLease

if TYPE_CHECKING:
    from holdfast.aio.ownership import Assignment, Owner
    from holdfast.aio.queue import Consumer, DeadLetterQueue, Message, PartitionedQueue, Queue, Worker

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
    "holdfast.aio.ownership": ("Owner", "Assignment"),
    "holdfast.aio.queue": ("Consumer", "DeadLetterQueue", "Message", "PartitionedQueue", "Queue", "Worker"),
}
__getattr__, __dir__ = lazy_exports(__name__, _LATER)
