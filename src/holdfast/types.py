"""The types of the values that Holdfast returns, for annotations and `isinstance`.

A program rarely makes these values itself, so they are kept out of the top level of the package.
"""

from __future__ import annotations

from holdfast._lazy import lazy_exports

TYPE_CHECKING = False  # importing typing for its constant would cost every program that imports holdfast
if TYPE_CHECKING:
    from holdfast.blocking import (
        Leading,
        LeaseGroup,
        LockMany,
        LossEvent,
        OnceClaim,
        Permit,
        RegistryLease,
        RWLease,
        RWLockMode,
    )
    from holdfast.core.build.build_dir import BuildResult
    from holdfast.core.build.build_once import Staging
    from holdfast.core.build.domain import LockDomain
    from holdfast.core.inspection import LeaseStatus
    from holdfast.core.lease.leader import LeaderStatus
    from holdfast.core.limit.budget import BudgetStatus
    from holdfast.core.limit.limit import Decision
    from holdfast.core.pool.pool import ItemStatus, PoolStats
    from holdfast.core.queue.dlq import DeadLetter
    from holdfast.core.queue.queue import ConsistencyReport, ConsumerStatus, PeekedMessage, QueueStats
    from holdfast.core.registry.registry import RegistryChange, RegistryEntry
    from holdfast.errors import CommandOutcome, LossReason, UnavailableReason

_HOMES = {
    "holdfast.blocking": (
        "Leading",
        "LeaseGroup",
        "LockMany",
        "LossEvent",
        "OnceClaim",
        "Permit",
        "RWLease",
        "RWLockMode",
        "RegistryLease",
    ),
    "holdfast.core.build.build_dir": ("BuildResult",),
    "holdfast.core.build.build_once": ("Staging",),
    "holdfast.core.build.domain": ("LockDomain",),
    "holdfast.core.inspection": ("LeaseStatus",),
    "holdfast.core.lease.leader": ("LeaderStatus",),
    "holdfast.core.limit.budget": ("BudgetStatus",),
    "holdfast.core.limit.limit": ("Decision",),
    "holdfast.core.pool.pool": ("ItemStatus", "PoolStats"),
    "holdfast.core.queue.dlq": ("DeadLetter",),
    "holdfast.core.queue.queue": ("ConsistencyReport", "ConsumerStatus", "PeekedMessage", "QueueStats"),
    "holdfast.core.registry.registry": ("RegistryChange", "RegistryEntry"),
    "holdfast.errors": ("CommandOutcome", "LossReason", "UnavailableReason"),
}

__all__ = [
    "BudgetStatus",
    "BuildResult",
    "CommandOutcome",
    "ConsistencyReport",
    "ConsumerStatus",
    "DeadLetter",
    "Decision",
    "ItemStatus",
    "LeaderStatus",
    "Leading",
    "LeaseGroup",
    "LeaseStatus",
    "LockDomain",
    "LockMany",
    "LossEvent",
    "LossReason",
    "OnceClaim",
    "PeekedMessage",
    "Permit",
    "PoolStats",
    "QueueStats",
    "RWLease",
    "RWLockMode",
    "RegistryChange",
    "RegistryEntry",
    "RegistryLease",
    "Staging",
    "UnavailableReason",
]


__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
