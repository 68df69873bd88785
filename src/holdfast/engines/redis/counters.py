"""The commands of rate limits, budgets and `once` on Redis: scripts, arguments and replies.

A counter is one key, `PREFIX:{NAME}:KIND`, beside the keys of a lease of the same name. Its scripts serve no waiter, so
they get no client.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from holdfast.commands import (
    Answer,
    BeginOnce,
    BudgetBalance,
    Done,
    DoneMarker,
    FinishOnce,
    GetBalance,
    Hit,
    IsDone,
    LimitDecision,
    MarkDone,
    Released,
    Reserve,
    ResetCounter,
    Settle,
    UndoReserve,
)
from holdfast.engines.redis.lease import release_arguments
from holdfast.engines.redis.resp import bulk, repeated
from holdfast.engines.redis.script import Script

if TYPE_CHECKING:
    from collections.abc import Callable


@lru_cache(maxsize=64)
def _rates(rates: tuple[tuple[int, int], ...], smooth: bool, cost: int, take: bool) -> tuple[str, ...]:
    """Return the arguments of a hit, which are the same from one hit to the next."""
    return (str(int(smooth)), str(cost), str(int(take)), *(str(number) for rate in rates for number in rate))


def _reserve(command: Reserve) -> tuple[str, ...]:
    return (command.token, *map(str, (command.amount, command.limit, command.period_ms, command.hold_ms)))


def _begin(command: BeginOnce) -> bytes:
    acquire = command.acquire
    return bulk(acquire.token) + repeated(acquire.holder) + repeated(acquire.ttl_ms) + bulk("0")


def _finish(command: FinishOnce) -> bytes:
    return release_arguments(command.release) + bulk(command.mark.marker) + repeated(command.mark.window_ms)


def _counter(file: str, arguments: Callable[[Any], tuple[str, ...]]) -> Script:
    return Script(f"counters/{file}", arguments, counter=True)


SCRIPTS: dict[type, Script] = {
    Hit: _counter("hit", lambda command: _rates(command.rates, command.smooth, command.cost, command.take)),
    ResetCounter: _counter("reset", lambda _command: ()),
    Reserve: _counter("reserve", _reserve),
    Settle: _counter("settle", lambda command: (command.token, str(command.began_us), str(command.actual))),
    UndoReserve: _counter("undo_reserve", lambda command: (command.token, str(command.period_ms))),
    GetBalance: _counter("balance", lambda _command: ()),
    MarkDone: _counter("mark_done", lambda command: (command.marker, str(command.window_ms))),
    IsDone: _counter("is_done", lambda _command: ()),
    BeginOnce: Script("counters/begin_once", _begin, count=4),
    FinishOnce: Script("counters/finish_once", _finish, count=4),
}


def _decided(reply: list[Any]) -> Answer:
    _, allowed, remaining, limit, retry_us, reset_us, period_us = reply
    return LimitDecision(allowed == 1, remaining, limit, retry_us, reset_us, period_us)


def _spent(reply: list[Any]) -> Answer:
    _, ok, amount, reserved, began_us, reset_us, retry_us = reply
    return BudgetBalance(ok == 1, int(amount), int(reserved), int(began_us), reset_us, retry_us)


DONE: dict[type, Answer] = {FinishOnce: Released()}
REPLIES: dict[str, Callable[[list[Any]], Answer]] = {
    "decision": _decided,
    "balance": _spent,
    "done marker": lambda reply: DoneMarker(reply[1], exists=reply[2] == 1),
    "done": lambda _reply: Done(),
}
