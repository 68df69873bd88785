"""What is counted under a name, and belongs to nobody: rates and budgets.

A tally has no holder, no waiters and no fence. Its rule takes what was counted and a command, and gives what is counted
now and the answer; `None` where nothing is. Tallies live on shelves beside the leases, so a name may be both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.commands import Answer, Balance, Forget, Hit, Reserve, Settle
from holdfast.rules import budget, limit
from holdfast.rules.record import Moment

TallyRule = Callable[[Any, Any, Moment], tuple[Any, Answer]]

TALLIES: dict[type, TallyRule] = {
    Hit: limit.hit,
    Forget: limit.forget,
    Reserve: budget.reserve,
    Settle: budget.settle,
    Balance: budget.balance,
}


def until_us(tally: Any, command: Any) -> int:
    """Until when it has to be kept, by the engine's calendar."""
    return limit.forget_at_us(tally, command) if type(command) is Hit else budget.forget_at_us(tally)


def unpacked(shelf: str, stored: Any) -> Any:
    """A tally that was kept as plain lists; numbers, texts, lists and dictionaries are all that it is made of."""
    return budget.unpacked(stored) if shelf == "b" else limit.unpacked(shelf, stored)
