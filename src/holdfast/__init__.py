"""Holdfast: one holder at a time, and proof of it.

The blocking face; `holdfast.aio` has the same names, awaited. The names below are loaded when they are first used, so
that a program which only may need a lock does not pay for one.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which would have to be imported
if TYPE_CHECKING:
    from holdfast.blocking import (
        Budget,
        Claimed,
        Directory,
        First,
        Holdfast,
        Leader,
        Lease,
        Limiter,
        Lock,
        Once,
        Reservation,
        Signal,
        Term,
        connect,
    )
    from holdfast.core.budget import Spending
    from holdfast.core.directory import Change, Held
    from holdfast.core.inspection import Holding
    from holdfast.core.leader import Leading
    from holdfast.core.limit import Decision
    from holdfast.engines import Limit, Promise
    from holdfast.errors import (
        BudgetExceeded,
        Closed,
        Fenced,
        HoldfastError,
        InvalidConfig,
        InvalidName,
        LeaseLost,
        NotAcquired,
        NotFound,
        NotOwner,
        PayloadMismatch,
        PromiseNotKept,
        RateLimited,
        Unavailable,
    )
    from holdfast.names import Owner
    from holdfast.observer import Event, Observer

_HOMES = {
    "holdfast.blocking": (
        "Budget",
        "Claimed",
        "Directory",
        "First",
        "Holdfast",
        "Leader",
        "Lease",
        "Limiter",
        "Lock",
        "Once",
        "Reservation",
        "Signal",
        "Term",
        "connect",
    ),
    "holdfast.core.budget": ("Spending",),
    "holdfast.core.directory": ("Change", "Held"),
    "holdfast.core.inspection": ("Holding",),
    "holdfast.core.leader": ("Leading",),
    "holdfast.core.limit": ("Decision",),
    "holdfast.engines": ("Limit", "Promise"),
    "holdfast.errors": (
        "BudgetExceeded",
        "Closed",
        "Fenced",
        "HoldfastError",
        "InvalidConfig",
        "InvalidName",
        "LeaseLost",
        "NotAcquired",
        "NotFound",
        "NotOwner",
        "PayloadMismatch",
        "PromiseNotKept",
        "RateLimited",
        "Unavailable",
    ),
    "holdfast.names": ("Owner",),
    "holdfast.observer": ("Event", "Observer"),
}

__all__ = [
    "Budget",
    "BudgetExceeded",
    "Change",
    "Claimed",
    "Closed",
    "Decision",
    "Directory",
    "Event",
    "Fenced",
    "First",
    "Held",
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
    "Limiter",
    "Lock",
    "NotAcquired",
    "NotFound",
    "NotOwner",
    "Observer",
    "Once",
    "Owner",
    "PayloadMismatch",
    "Promise",
    "PromiseNotKept",
    "RateLimited",
    "Reservation",
    "Signal",
    "Spending",
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
