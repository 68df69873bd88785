"""Holdfast: one holder at a time, and proof of it.

The blocking face; `holdfast.aio` has the same names, awaited. The names below are loaded when they are first used, so
that a program which only may need a lock does not pay for one.
"""

from __future__ import annotations

from holdfast._lazy import later

TYPE_CHECKING = False  # as typing's, which would have to be imported
if TYPE_CHECKING:
    from holdfast.blocking import (
        Access,
        Budget,
        Claimed,
        Consumer,
        Directory,
        Dlq,
        First,
        Holdfast,
        Item,
        KeyOwner,
        Leader,
        Lease,
        Limiter,
        Lock,
        Message,
        Once,
        Partitioned,
        Pool,
        Queue,
        Reservation,
        RWLock,
        Seat,
        Semaphore,
        Side,
        Signal,
        Term,
        Work,
        Worker,
        connect,
    )
    from holdfast.core.build.build_dir import Built
    from holdfast.core.build.build_once import Staging
    from holdfast.core.build.domain import Domain
    from holdfast.core.inspection import Holding
    from holdfast.core.lease.leader import Leading
    from holdfast.core.limit.budget import Spending
    from holdfast.core.limit.limit import Decision
    from holdfast.core.ownership.assignment import Added, Ended, Expired, Lost
    from holdfast.core.pool.pool import ItemStanding, PoolStats
    from holdfast.core.queue.dlq import DeadLetter
    from holdfast.core.queue.outcomes import Backoff, Dead, Release, Retry
    from holdfast.core.queue.queue import ConsumerStanding, QueueStats, Seen, Soundness
    from holdfast.core.registry.registry import Change, Held
    from holdfast.engines import Limit, Promise
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
    from holdfast.names import Owner
    from holdfast.observer import Event, Observer

_HOMES = {
    "holdfast.blocking": (
        "Worker",
        "Queue",
        "Message",
        "Dlq",
        "Consumer",
        "KeyOwner",
        "Partitioned",
        "Work",
        "Access",
        "Budget",
        "Claimed",
        "Directory",
        "First",
        "Holdfast",
        "Item",
        "Leader",
        "Lease",
        "Limiter",
        "Lock",
        "Once",
        "Pool",
        "RWLock",
        "Reservation",
        "Seat",
        "Semaphore",
        "Side",
        "Signal",
        "Term",
        "connect",
    ),
    "holdfast.core.limit.budget": ("Spending",),
    "holdfast.core.build.build_once": ("Staging",),
    "holdfast.core.registry.registry": ("Change", "Held"),
    "holdfast.core.queue.dlq": ("DeadLetter",),
    "holdfast.core.build.domain": ("Domain",),
    "holdfast.core.inspection": ("Holding",),
    "holdfast.core.lease.leader": ("Leading",),
    "holdfast.core.limit.limit": ("Decision",),
    "holdfast.core.queue.outcomes": ("Backoff", "Dead", "Release", "Retry"),
    "holdfast.core.pool.pool": ("ItemStanding", "PoolStats"),
    "holdfast.core.queue.queue": ("ConsumerStanding", "QueueStats", "Seen", "Soundness"),
    "holdfast.core.build.build_dir": ("Built",),
    "holdfast.core.ownership.assignment": ("Added", "Ended", "Expired", "Lost"),
    "holdfast.engines": ("Limit", "Promise"),
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
    "holdfast.names": ("Owner",),
    "holdfast.observer": ("Event", "Observer"),
}

__all__ = [
    "Access",
    "Added",
    "Backoff",
    "Budget",
    "BudgetExceeded",
    "BuildFailed",
    "Built",
    "Change",
    "Claimed",
    "Closed",
    "Consumer",
    "ConsumerStanding",
    "Dead",
    "DeadLetter",
    "Decision",
    "Directory",
    "Dlq",
    "Domain",
    "DomainMismatch",
    "Ended",
    "Event",
    "Expired",
    "Fenced",
    "First",
    "Held",
    "Holdfast",
    "HoldfastError",
    "Holding",
    "InvalidConfig",
    "InvalidName",
    "Item",
    "ItemStanding",
    "ItemsLent",
    "KeyOwner",
    "Leader",
    "Leading",
    "Lease",
    "LeaseLost",
    "Limit",
    "Limiter",
    "Lock",
    "Lost",
    "Message",
    "NotAcquired",
    "NotFound",
    "NotOwner",
    "NotPermitted",
    "Observer",
    "Once",
    "Owner",
    "Partitioned",
    "PartlyDone",
    "PayloadMismatch",
    "Pool",
    "PoolStats",
    "Promise",
    "PromiseNotKept",
    "Queue",
    "QueueFull",
    "QueueStats",
    "RWLock",
    "RateLimited",
    "Release",
    "Reservation",
    "Retry",
    "Seat",
    "Seen",
    "Semaphore",
    "Side",
    "Signal",
    "Soundness",
    "Spending",
    "Staging",
    "Term",
    "Unavailable",
    "Work",
    "Worker",
    "connect",
]


_load, __dir__ = later(__name__, _HOMES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - only when it is asked for

        return version("holdfast")
    return _load(name)
