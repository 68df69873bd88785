"""Counters: values stored under a name without a holder, a waiting line or a fence.

Rate limits, budgets and the markers of `once` are counters. A rule takes the stored value (`None` if there is none) and
a command, and returns the new value and the answer. Engines store counters under (kind, name), apart from leases, so a
lease and a counter may have the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.commands import Answer, Hit
from holdfast.rules import budget, limit, once
from holdfast.rules.lease_record import Moment

CounterRule = Callable[[Any, Any, Moment], tuple[Any, Answer]]


def until_us(counter: Any, command: Any) -> int:
    """Return until when the engine must store the counter, on its calendar."""
    if type(command) is Hit:
        return limit.forget_at_us(counter, command)
    return counter.until_us if isinstance(counter, once.StoredMarker) else budget.forget_at_us(counter)


def unpacked(kind: str, stored: Any) -> Any:
    """Return a counter from its stored form: numbers, texts, lists and dictionaries, as JSON gives them."""
    if kind == "o":
        return once.StoredMarker(*stored)
    return budget.unpacked(stored) if kind == "b" else limit.unpacked(kind, stored)
