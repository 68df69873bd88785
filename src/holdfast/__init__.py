"""Holdfast: one holder at a time, and proof of it.

The blocking face; `holdfast.aio` has the same names, awaited. The names below are loaded when they are first used, so
that a program which only may need a lock does not pay for one.
"""

from __future__ import annotations

from holdfast._lazy import later

TYPE_CHECKING = False  # as typing's, which would have to be imported
if TYPE_CHECKING:
    from holdfast.blocking import (
        Assignment,
        Budget,
        Consumer,
        DeadLetterQueue,
        Holdfast,
        Item,
        Leader,
        Lease,
        Lock,
        LossEvent,
        Message,
        Once,
        OnceClaim,
        Owner,
        PartitionedQueue,
        Permit,
        Pool,
        Queue,
        RateLimiter,
        Registry,
        RegistryLease,
        Reservation,
        RWLease,
        RWLock,
        RWLockMode,
        Semaphore,
        Term,
        Worker,
        connect,
    )
    from holdfast.core.build.build_dir import BuildResult
    from holdfast.core.build.build_once import Staging
    from holdfast.core.build.domain import LockDomain
    from holdfast.core.inspection import LeaseStatus
    from holdfast.core.lease.leader import LeaderStatus
    from holdfast.core.limit.budget import BudgetStatus
    from holdfast.core.limit.limit import Decision
    from holdfast.core.ownership.assignment import Assigned, AssignmentExpired, AssignmentLost, OwnerStopped
    from holdfast.core.pool.pool import ItemStatus, PoolStats
    from holdfast.core.queue.dlq import DeadLetter
    from holdfast.core.queue.outcomes import Backoff, Reject, Release, Retry
    from holdfast.core.queue.queue import ConsistencyReport, ConsumerStatus, QueueStats, Seen
    from holdfast.core.registry.registry import RegistryChange, RegistryEntry
    from holdfast.engines import Caveat, Promise
    from holdfast.errors import (
        BudgetExceeded,
        BuildFailed,
        Closed,
        DomainMismatch,
        Fenced,
        HoldfastError,
        InvalidConfig,
        InvalidName,
        ItemsLent,
        LeaseLost,
        NotAcquired,
        NotFound,
        NotOwner,
        NotPermitted,
        PartlyDone,
        PayloadMismatch,
        PromiseNotKept,
        QueueFull,
        RateLimited,
        Unavailable,
    )
    from holdfast.names import Holder
    from holdfast.observer import Event, Observer

_HOMES = {
    "holdfast.blocking": (
        "Worker",
        "Queue",
        "Message",
        "DeadLetterQueue",
        "Consumer",
        "Owner",
        "PartitionedQueue",
        "Assignment",
        "RWLease",
        "Budget",
        "RegistryLease",
        "Registry",
        "OnceClaim",
        "Holdfast",
        "Item",
        "Leader",
        "Lease",
        "RateLimiter",
        "Lock",
        "Once",
        "Pool",
        "RWLock",
        "Reservation",
        "Permit",
        "Semaphore",
        "RWLockMode",
        "LossEvent",
        "Term",
        "connect",
    ),
    "holdfast.core.limit.budget": ("BudgetStatus",),
    "holdfast.core.build.build_once": ("Staging",),
    "holdfast.core.registry.registry": ("RegistryChange", "RegistryEntry"),
    "holdfast.core.queue.dlq": ("DeadLetter",),
    "holdfast.core.build.domain": ("LockDomain",),
    "holdfast.core.inspection": ("LeaseStatus",),
    "holdfast.core.lease.leader": ("LeaderStatus",),
    "holdfast.core.limit.limit": ("Decision",),
    "holdfast.core.queue.outcomes": ("Backoff", "Reject", "Release", "Retry"),
    "holdfast.core.pool.pool": ("ItemStatus", "PoolStats"),
    "holdfast.core.queue.queue": ("ConsumerStatus", "QueueStats", "Seen", "ConsistencyReport"),
    "holdfast.core.build.build_dir": ("BuildResult",),
    "holdfast.core.ownership.assignment": ("Assigned", "OwnerStopped", "AssignmentExpired", "AssignmentLost"),
    "holdfast.engines": ("Caveat", "Promise"),
    "holdfast.errors": (
        "BudgetExceeded",
        "BuildFailed",
        "Closed",
        "DomainMismatch",
        "Fenced",
        "HoldfastError",
        "InvalidConfig",
        "InvalidName",
        "ItemsLent",
        "LeaseLost",
        "NotAcquired",
        "NotFound",
        "NotOwner",
        "NotPermitted",
        "PartlyDone",
        "PayloadMismatch",
        "PromiseNotKept",
        "QueueFull",
        "RateLimited",
        "Unavailable",
    ),
    "holdfast.names": ("Holder",),
    "holdfast.observer": ("Event", "Observer"),
}

__all__ = [
    "Owner",
    "Assigned",
    "Assignment",
    "AssignmentExpired",
    "AssignmentLost",
    "Backoff",
    "Budget",
    "BudgetExceeded",
    "BudgetStatus",
    "BuildFailed",
    "BuildResult",
    "Caveat",
    "Closed",
    "ConsistencyReport",
    "Consumer",
    "ConsumerStatus",
    "DeadLetter",
    "DeadLetterQueue",
    "Decision",
    "DomainMismatch",
    "Event",
    "Fenced",
    "Holder",
    "Holdfast",
    "HoldfastError",
    "InvalidConfig",
    "InvalidName",
    "Item",
    "ItemStatus",
    "ItemsLent",
    "Leader",
    "LeaderStatus",
    "Lease",
    "LeaseLost",
    "LeaseStatus",
    "Lock",
    "LockDomain",
    "LossEvent",
    "Message",
    "NotAcquired",
    "NotFound",
    "NotOwner",
    "NotPermitted",
    "Observer",
    "Once",
    "OnceClaim",
    "OwnerStopped",
    "PartitionedQueue",
    "PartlyDone",
    "PayloadMismatch",
    "Permit",
    "Pool",
    "PoolStats",
    "Promise",
    "PromiseNotKept",
    "Queue",
    "QueueFull",
    "QueueStats",
    "RWLease",
    "RWLock",
    "RWLockMode",
    "RateLimited",
    "RateLimiter",
    "Registry",
    "RegistryChange",
    "RegistryEntry",
    "RegistryLease",
    "Reject",
    "Release",
    "Reservation",
    "Retry",
    "Seen",
    "Semaphore",
    "Staging",
    "Term",
    "Unavailable",
    "Worker",
    "connect",
]


_load, __dir__ = later(__name__, _HOMES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - only when it is asked for

        return version("holdfast")
    return _load(name)
