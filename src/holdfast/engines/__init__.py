"""Engines: where leases live, and how one is opened.

`interface` defines what an engine is; `schemes` finds the engine of a URL. docs/architecture.md lists every file that a
new engine needs, under "Add an engine".
"""

from __future__ import annotations

from holdfast.engines.interface import (
    ALL_FEATURES,
    ALTERNATIVES,
    Administration,
    Capability,
    CommandTransport,
    Engine,
    EngineDriver,
    EngineEvent,
    ExpiryWatch,
    Reply,
    Scope,
    Transport,
    WaitingTransport,
    Waker,
)
from holdfast.engines.schemes import ENGINES, find_driver, open_engine
from holdfast.rules.promise import Caveat, Promise

__all__ = [
    "ALL_FEATURES",
    "ALTERNATIVES",
    "ENGINES",
    "Administration",
    "Capability",
    "Caveat",
    "CommandTransport",
    "Engine",
    "EngineDriver",
    "EngineEvent",
    "ExpiryWatch",
    "Promise",
    "Reply",
    "Scope",
    "Transport",
    "WaitingTransport",
    "Waker",
    "find_driver",
    "open_engine",
]
