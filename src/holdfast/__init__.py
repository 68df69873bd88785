"""Holdfast: one holder at a time, and proof of it.

The blocking face; `holdfast.aio` has the same names, awaited.
"""

from __future__ import annotations

from holdfast.blocking import Holdfast, Leader, Lease, Lock, Signal, Term, connect
from holdfast.core.inspection import Holding
from holdfast.core.leader import Leading
from holdfast.engines import Limit, Promise
from holdfast.errors import (
    Closed,
    Fenced,
    HoldfastError,
    InvalidConfig,
    InvalidName,
    LeaseLost,
    NotAcquired,
    NotFound,
    NotOwner,
    Unavailable,
)
from holdfast.names import Owner
from holdfast.observer import Event, Observer

__all__ = [
    "Closed",
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
    "Signal",
    "Term",
    "Unavailable",
    "connect",
]
