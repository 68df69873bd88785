"""The rules of rate limits: how many hits in which period, and how a rate is written.

There are two methods. A sliding window counts the hits of the last period: never more than the limit in any window.
Smoothing (GCRA) lets the allowance grow back evenly. Several windows give one decision: if one window refuses a hit, no
window counts it.

Only the engine's clock counts. If that clock is set back, these rules use the time of the last hit until the clock has
caught up, for at most one period. lua/counters/hit.lua has the same steps in the same order; a property test compares
the two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from holdfast.commands import Done, Hit, LimitDecision, ResetCounter
from holdfast.errors import InvalidConfig
from holdfast.rules.lease_record import Moment
from holdfast.text import shown

# Up to this limit, the log has one entry per hit; above it, the hits within a hundredth of the period share an entry.
GRAINS = 100
COUNT_MAX = 1_000_000_000
PERIOD_MAX_US = 31 * 86400 * 1_000_000
WINDOWS_MAX = 8
TEXT_MAX = 400

Rates: TypeAlias = tuple[tuple[int, int], ...]

_UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
}
_RATE = re.compile(r"\s*([0-9]{1,18})\s*(?:/|per)\s*([0-9]{0,18})\s*([a-z]+)\s*", re.IGNORECASE | re.ASCII)
_EXAMPLE = "it must read like 10/second; 100/minute, or 5/2s"


def rates(text: object) -> Rates:
    """Parse a rate: `10/second; 100/minute` are two windows, in any order."""
    if not isinstance(text, str):
        raise InvalidConfig("rate", text, f"{_EXAMPLE}, as text")
    if len(text) > TEXT_MAX:
        raise InvalidConfig("rate", text, f"it must have at most {TEXT_MAX} characters")
    found = tuple(_rate(text, part) for part in re.split("[;,]", text) if part.strip())
    if not 1 <= len(found) <= WINDOWS_MAX:
        raise InvalidConfig("rate", text, f"{_EXAMPLE}: 1 to {WINDOWS_MAX} windows")
    if len({period_us for _, period_us in found}) < len(found):
        raise InvalidConfig("rate", text, "it must name each period only once")
    return tuple(sorted(found, key=lambda rate: rate[1]))


def _rate(text: str, part: str) -> tuple[int, int]:
    match = _RATE.fullmatch(part)
    if match is None:
        raise InvalidConfig("rate", text, _EXAMPLE)
    count, units, unit_name = match.groups()
    unit = _UNITS.get(unit_name.lower())
    if unit is None:
        raise InvalidConfig(
            "rate", text, f"{shown(unit_name)} is not a unit of time: use second, minute, hour, day, or ms, s, m, h, d"
        )
    period_us = int(units or "1") * unit
    if not 1 <= int(count) <= COUNT_MAX or not 1_000 <= period_us <= PERIOD_MAX_US:
        raise InvalidConfig("rate", text, f"it must be 1 to {COUNT_MAX} in a millisecond to 31 days")
    return int(count), period_us


def share_of(rates: Rates, share: float) -> Rates:
    """Return the rates that one process allows without the engine: this share of each limit, at least one hit."""
    return tuple((max(1, int(count * share)), period_us) for count, period_us in rates)


class Log(NamedTuple):
    """The hits of the last period: the newest entry, the older entries in order, and the sum of all.

    An entry expires one period after its last hit, so its earlier hits count a little longer, never shorter.
    """

    begin_us: int = 0
    last_us: int = 0
    amount: int = 0
    total: int = 0
    older: tuple[tuple[int, int], ...] = ()


class Level(NamedTuple):
    """The used allowance at the moment of the last hit, as the time until it has grown back."""

    level_us: float = 0.0
    last_us: int = 0


Window: TypeAlias = Log | Level
Windows: TypeAlias = tuple[Window, ...]


class _View(NamedTuple):
    """The state of one window now, as the decision reports it."""

    remaining: int
    limit: int
    retry_us: int
    reset_us: int
    period_us: int


def hit(before: Windows | None, command: Hit, moment: Moment) -> tuple[Windows | None, LimitDecision]:
    """Allow the hit and count it in every window, or refuse it and count it in none."""
    method = _SMOOTH if command.smooth else _SLIDING
    windows = [
        method.advance(window, period_us, moment.wall_us)
        for window, (_, period_us) in zip(before or (method.empty,) * len(command.rates), command.rates, strict=True)
    ]
    views = [_view(method, window, rate, command, moment) for window, rate in zip(windows, command.rates, strict=True)]
    longest = max(views, key=lambda view: view.retry_us)
    if longest.retry_us:
        return before, LimitDecision(False, *longest)
    if not command.take:
        return before, LimitDecision(True, *_tightest(views))
    windows = [
        method.taken(window, rate, command.cost, max(moment.wall_us, window.last_us))
        for window, rate in zip(windows, command.rates, strict=True)
    ]
    free = command._replace(cost=0)
    views = [_view(method, window, rate, free, moment) for window, rate in zip(windows, command.rates, strict=True)]
    return tuple(windows), LimitDecision(True, *_tightest(views))


def reset(before: Windows | None, command: ResetCounter, moment: Moment) -> tuple[None, Done]:  # noqa: ARG001 - the signature of all rules
    """Delete the counter."""
    return None, Done()


def forget_at_us(windows: Windows, command: Hit) -> int:
    """Return when the counter is no longer needed."""
    return max(window.last_us + period_us for window, (_, period_us) in zip(windows, command.rates, strict=True))


def _view(method: _Method, window: Any, rate: tuple[int, int], command: Hit, moment: Moment) -> _View:
    now_us = max(moment.wall_us, window.last_us)
    remaining, reset_us = method.left(window, rate, now_us)
    return _View(remaining, rate[0], method.retry_us(window, rate, command.cost, now_us), reset_us, rate[1])


def _tightest(views: list[_View]) -> _View:
    """Return the window with the fewest hits left; among equal windows, the one that takes longest to empty."""
    return min(views, key=lambda view: (view.remaining, -view.reset_us))


# The sliding window.


def _current_log(log: Log, period_us: int, now_us: int) -> Log:
    if log.last_us + period_us <= now_us or log.last_us - period_us > now_us:
        return Log()  # every hit is too old, or the clock was set back by more than a period
    expired = 0
    while expired < len(log.older) and log.older[expired][0] + period_us <= now_us:
        expired += 1
    if not expired:
        return log
    return log._replace(total=log.total - sum(amount for _, amount in log.older[:expired]), older=log.older[expired:])


def _log_retry_us(log: Log, rate: tuple[int, int], cost: int, now_us: int) -> int:
    """Return how long until a hit of this cost fits into the window; 0 if it fits now."""
    count, period_us = rate
    excess = log.total + cost - count
    if excess <= 0:
        return 0
    if cost > count:
        return period_us  # this limit never allows such a cost, but the limit may change
    for at_us, amount in log.older:
        excess -= amount
        if excess <= 0:
            return at_us + period_us - now_us
    return log.last_us + period_us - now_us


def _log_left(log: Log, rate: tuple[int, int], now_us: int) -> tuple[int, int]:
    return max(0, rate[0] - log.total), log.last_us + rate[1] - now_us if log.total else 0


def _log_taken(log: Log, rate: tuple[int, int], cost: int, now_us: int) -> Log:
    count, period_us = rate
    grain_us = period_us // GRAINS if count > GRAINS else 0
    if log.amount and now_us - log.begin_us <= grain_us:
        return Log(log.begin_us, now_us, log.amount + cost, log.total + cost, log.older)
    older = (*log.older, (log.last_us, log.amount)) if log.amount else log.older
    return Log(now_us, now_us, cost, log.total + cost, older)


# Smoothing (GCRA): a level that falls evenly. One microsecond of tolerance covers rounding.


def _current_level(level: Level, period_us: int, now_us: int) -> Level:
    if level.last_us - period_us > now_us:
        return Level()
    now_us = max(now_us, level.last_us)
    return Level(max(0.0, level.level_us - (now_us - level.last_us)), now_us)


def _level_retry_us(level: Level, rate: tuple[int, int], cost: int, now_us: int) -> int:  # noqa: ARG001 - the signature of both methods
    count, period_us = rate
    over_us = level.level_us + cost * (period_us / count) - period_us
    if cost > count:
        return period_us
    return math.ceil(over_us) if over_us > 1 else 0


def _level_left(level: Level, rate: tuple[int, int], now_us: int) -> tuple[int, int]:  # noqa: ARG001
    count, period_us = rate
    left = math.floor((period_us + 1 - level.level_us) / (period_us / count))
    return max(0, min(count, left)), math.ceil(level.level_us)


def _level_taken(level: Level, rate: tuple[int, int], cost: int, now_us: int) -> Level:
    count, period_us = rate
    return Level(level.level_us + cost * (period_us / count), now_us)


class _Method(NamedTuple):
    """A method of counting: drop expired hits, compute the retry time and the hits left, and count a hit."""

    empty: Any
    advance: Callable[[Any, int, int], Any]
    retry_us: Callable[[Any, tuple[int, int], int, int], int]
    left: Callable[[Any, tuple[int, int], int], tuple[int, int]]
    taken: Callable[[Any, tuple[int, int], int, int], Any]


_SLIDING = _Method(Log(), _current_log, _log_retry_us, _log_left, _log_taken)
_SMOOTH = _Method(Level(), _current_level, _level_retry_us, _level_left, _level_taken)


def unpacked(kind: str, stored: list[list[Any]]) -> Windows:
    """Return the windows from their stored form, plain lists."""
    return tuple(Level(*window) if kind.startswith("g") else _log(*window) for window in stored)


def _log(begin_us: int, last_us: int, amount: int, total: int, older: list[list[int]]) -> Log:
    return Log(begin_us, last_us, amount, total, tuple((at_us, hits) for at_us, hits in older))
