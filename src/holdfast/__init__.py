"""Holdfast: one holder at a time, and proof of it.

This package is the blocking face; `holdfast.aio` has the same names with `await`. The value types that methods return
are in `holdfast.types`. Python loads each name when a program first uses it, so a program pays only for the features
that it uses.
"""

from __future__ import annotations

from holdfast._lazy import lazy_exports

TYPE_CHECKING = False  # importing typing for its constant would cost every program that imports holdfast
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
        Message,
        Once,
        Owner,
        PartitionedQueue,
        Pool,
        Queue,
        RateLimiter,
        Registry,
        Reservation,
        RWLock,
        Semaphore,
        Term,
        Worker,
        connect,
    )
    from holdfast.core.ownership.assignment import Assigned, AssignmentExpired, AssignmentLost, OwnerStopped
    from holdfast.core.queue.outcomes import Backoff, Reject, Release, Retry
    from holdfast.engines import Caveat, Promise
    from holdfast.errors import (
        BudgetExceeded,
        BuildFailed,
        Closed,
        Deadlock,
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
        UnknownOption,
    )
    from holdfast.names import Holder
    from holdfast.observer import Event, Observer

_HOMES = {
    "holdfast.blocking": (
        "Assignment",
        "Budget",
        "Consumer",
        "DeadLetterQueue",
        "Holdfast",
        "Item",
        "Leader",
        "Lease",
        "Lock",
        "Message",
        "Once",
        "Owner",
        "PartitionedQueue",
        "Pool",
        "Queue",
        "RWLock",
        "RateLimiter",
        "Registry",
        "Reservation",
        "Semaphore",
        "Term",
        "Worker",
        "connect",
    ),
    "holdfast.core.ownership.assignment": ("Assigned", "AssignmentExpired", "AssignmentLost", "OwnerStopped"),
    "holdfast.core.queue.outcomes": ("Backoff", "Reject", "Release", "Retry"),
    "holdfast.engines": ("Caveat", "Promise"),
    "holdfast.errors": (
        "BudgetExceeded",
        "BuildFailed",
        "Closed",
        "Deadlock",
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
        "UnknownOption",
    ),
    "holdfast.names": ("Holder",),
    "holdfast.observer": ("Event", "Observer"),
}

__all__ = [
    "Assigned",
    "Assignment",
    "AssignmentExpired",
    "AssignmentLost",
    "Backoff",
    "Budget",
    "BudgetExceeded",
    "BuildFailed",
    "Caveat",
    "Closed",
    "Consumer",
    "DeadLetterQueue",
    "Deadlock",
    "DomainMismatch",
    "Event",
    "Fenced",
    "Holder",
    "Holdfast",
    "HoldfastError",
    "InvalidConfig",
    "InvalidName",
    "Item",
    "ItemsLent",
    "Leader",
    "Lease",
    "LeaseLost",
    "Lock",
    "Message",
    "NotAcquired",
    "NotFound",
    "NotOwner",
    "NotPermitted",
    "Observer",
    "Once",
    "Owner",
    "OwnerStopped",
    "PartitionedQueue",
    "PartlyDone",
    "PayloadMismatch",
    "Pool",
    "Promise",
    "PromiseNotKept",
    "Queue",
    "QueueFull",
    "RWLock",
    "RateLimited",
    "RateLimiter",
    "Registry",
    "Reject",
    "Release",
    "Reservation",
    "Retry",
    "Semaphore",
    "Term",
    "Unavailable",
    "UnknownOption",
    "Worker",
    "connect",
]


_load, __dir__ = lazy_exports(__name__, _HOMES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - reading the metadata is slow, and few programs need it

        return version("holdfast")
    return _load(name)
