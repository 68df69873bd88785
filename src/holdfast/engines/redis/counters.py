"""The commands of tallies: their scripts, their bytes, and what the replies mean.

A tally is one key on its shelf, `hf1:{NAME}:SHELF`, beside the keys of a lease of the same name. There is no client and
no wake-up in it, so the scripts are given nothing but what they need.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from holdfast.commands import (
    Answer,
    Balance,
    Decided,
    Done,
    Finished,
    Forget,
    Hit,
    Keep,
    Reserve,
    Seen,
    Settle,
    Spent,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# The file of each command, and how its arguments are made.
FILES: dict[type, str] = {
    Hit: "counters/hit",
    Forget: "counters/forget",
    Reserve: "counters/reserve",
    Settle: "counters/settle",
    Balance: "counters/balance",
    Keep: "counters/mark_done",
    Seen: "counters/is_done",
}


@lru_cache(maxsize=64)
def _hit(rates: tuple[tuple[int, int], ...], smooth: bool, cost: int, take: bool) -> tuple[str, ...]:
    """The same from one hit to the next."""
    return (str(int(smooth)), str(cost), str(int(take)), *(str(number) for rate in rates for number in rate))


ARGUMENTS: dict[type, Callable[[Any], tuple[str, ...]]] = {
    Hit: lambda ask: _hit(ask.rates, ask.smooth, ask.cost, ask.take),
    Forget: lambda _ask: (),
    Reserve: lambda ask: (ask.token, *map(str, (ask.amount, ask.limit, ask.period_ms, ask.hold_ms))),
    Settle: lambda ask: (ask.token, str(ask.began_us), str(ask.actual)),
    Balance: lambda _ask: (),
    Keep: lambda ask: (ask.note, str(ask.window_ms)),
    Seen: lambda _ask: (),
}


def decided(reply: list[Any]) -> Answer:
    _, allowed, remaining, limit, retry_us, reset_us = reply
    return Decided(allowed == 1, remaining, limit, retry_us, reset_us)


def spent(reply: list[Any]) -> Answer:
    _, ok, amount, reserved, began_us, reset_us, retry_us = reply
    return Spent(ok == 1, int(amount), int(reserved), int(began_us), reset_us, retry_us)


ANSWERS: dict[str, Callable[[list[Any]], Answer]] = {
    "decided": decided,
    "spent": spent,
    "finished": lambda reply: Finished(reply[1], known=reply[2] == 1),
    "done": lambda _reply: Done(),
}
