"""Holdfast: one holder at a time, and proof of it.

The blocking face; `holdfast.aio` has the same names, awaited. The names below are loaded when they are first used, so
that a program which only may need a lock does not pay for one.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which would have to be imported
if TYPE_CHECKING:
    from holdfast.blocking import Holdfast, Leader, Lease, Lock, Signal, Term, connect
    from holdfast.core.building import Staging
    from holdfast.core.domain import Domain
    from holdfast.core.inspection import Holding
    from holdfast.core.leader import Leading
    from holdfast.core.site import Built
    from holdfast.engines import Limit, Promise
    from holdfast.errors import (
        BuildFailed,
        Closed,
        DomainMismatch,
        Fenced,
        HoldfastError,
        InvalidConfig,
        InvalidName,
        LeaseLost,
        NotAcquired,
        NotFound,
        NotOwner,
        PromiseNotKept,
        Unavailable,
    )
    from holdfast.names import Owner
    from holdfast.observer import Event, Observer

_HOMES = {
    "holdfast.blocking": ("Holdfast", "Leader", "Lease", "Lock", "Signal", "Term", "connect"),
    "holdfast.core.building": ("Staging",),
    "holdfast.core.domain": ("Domain",),
    "holdfast.core.inspection": ("Holding",),
    "holdfast.core.leader": ("Leading",),
    "holdfast.core.site": ("Built",),
    "holdfast.engines": ("Limit", "Promise"),
    "holdfast.errors": (
        "BuildFailed",
        "Closed",
        "DomainMismatch",
        "Fenced",
        "HoldfastError",
        "InvalidConfig",
        "InvalidName",
        "LeaseLost",
        "NotAcquired",
        "NotFound",
        "NotOwner",
        "PromiseNotKept",
        "Unavailable",
    ),
    "holdfast.names": ("Owner",),
    "holdfast.observer": ("Event", "Observer"),
}

__all__ = [
    "BuildFailed",
    "Built",
    "Closed",
    "Domain",
    "DomainMismatch",
    "Event",
    "Fenced",
    "Holdfast",
    "HoldfastError",
    "Holding",
    "InvalidConfig",
    "InvalidName",
    "Leader",
    "Leading",
    "Lease",
    "LeaseLost",
    "Limit",
    "Lock",
    "NotAcquired",
    "NotFound",
    "NotOwner",
    "Observer",
    "Owner",
    "Promise",
    "PromiseNotKept",
    "Signal",
    "Staging",
    "Term",
    "Unavailable",
    "connect",
]


def __getattr__(name: str) -> object:
    from importlib import import_module  # noqa: PLC0415 - only when a name is used

    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("holdfast")
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
