"""What is counted or noted under a name, and belongs to nobody: rates, budgets, what was done.

A tally has no holder, no waiters and no fence. Its rule takes what was counted and a command, and gives what is counted
now and the answer; `None` where nothing is. Tallies live on shelves beside the leases, so a name may be both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.commands import Answer, GetBalance, Hit, IsDone, MarkDone, Reserve, ResetCounter, Settle
from holdfast.rules import budget, limit, once
from holdfast.rules.lease_record import Moment

CounterRule = Callable[[Any, Any, Moment], tuple[Any, Answer]]

COUNTER_RULES: dict[type, CounterRule] = {
    Hit: limit.hit,
    ResetCounter: limit.forget,
    Reserve: budget.reserve,
    Settle: budget.settle,
    GetBalance: budget.balance,
    MarkDone: once.keep,
    IsDone: once.seen,
}


def until_us(tally: Any, command: Any) -> int:
    """Until when it has to be kept, by the engine's calendar."""
    if type(command) is Hit:
        return limit.forget_at_us(tally, command)
    return tally.until_us if isinstance(tally, once.StoredMarker) else budget.forget_at_us(tally)


def unpacked(kind: str, stored: Any) -> Any:
    """A tally that was kept as plain lists; numbers, texts, lists and dictionaries are all that it is made of."""
    if kind == "o":
        return once.StoredMarker(*stored)
    return budget.unpacked(stored) if kind == "b" else limit.unpacked(kind, stored)
