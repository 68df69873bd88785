"""What is counted or noted under a name, and belongs to nobody: rates, budgets, what was done.

A tally has no holder, no waiters and no fence. Its rule takes what was counted and a command, and gives what is counted
now and the answer; `None` where nothing is. Tallies live on shelves beside the leases, so a name may be both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.commands import Answer, Balance, Forget, Hit, Keep, Reserve, Seen, Settle
from holdfast.rules import budget, limit, once
from holdfast.rules.lease_record import Moment

TallyRule = Callable[[Any, Any, Moment], tuple[Any, Answer]]

TALLIES: dict[type, TallyRule] = {
    Hit: limit.hit,
    Forget: limit.forget,
    Reserve: budget.reserve,
    Settle: budget.settle,
    Balance: budget.balance,
    Keep: once.keep,
    Seen: once.seen,
}


def until_us(tally: Any, command: Any) -> int:
    """Until when it has to be kept, by the engine's calendar."""
    if type(command) is Hit:
        return limit.forget_at_us(tally, command)
    return tally.until_us if isinstance(tally, once.Note) else budget.forget_at_us(tally)


def unpacked(shelf: str, stored: Any) -> Any:
    """A tally that was kept as plain lists; numbers, texts, lists and dictionaries are all that it is made of."""
    if shelf == "o":
        return once.Note(*stored)
    return budget.unpacked(stored) if shelf == "b" else limit.unpacked(shelf, stored)
