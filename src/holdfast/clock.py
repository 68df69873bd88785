"""Time: which clock the library trusts, and which lengths of time it accepts.

A holder's deadlines use a clock that counts suspend and never jumps. The library never compares the clocks of two
machines. Internally all times are integer nanoseconds; callers pass seconds or a `timedelta`.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from holdfast.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

Seconds: TypeAlias = "float | int | timedelta"

NS = 1_000_000_000
NS_PER_MS = 1_000_000
NS_PER_US = 1_000

TTL_MIN_S = 0.2
TTL_MAX_S = 31 * 24 * 3600.0
TIMEOUT_MAX_S = 366 * 24 * 3600.0
NEVER_NS = 2**62
_NUMBER = "it must be a number of seconds or a timedelta, such as 30, 0.5 or timedelta(minutes=5)"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

# macOS has no CLOCK_BOOTTIME, but its CLOCK_MONOTONIC counts suspend too.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """The source of time of the library."""

    def now_ns(self) -> int:
        """Return nanoseconds that never go back and count suspend."""

    def wall_us(self) -> int:
        """Return microseconds of the calendar, which an operator may set."""

    def timeout_s(self, until_ns: int) -> float | None:
        """Return how long a real sleep until `until_ns` may last; `None` if only a wake-up ends it."""

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever this clock jumps; return a function that stops these calls."""


class SystemClock:
    """The machine's own clock."""

    # A lease reads the clock many times, so this is a partial of the C function: a call needs no Python frame.
    now_ns = staticmethod(partial(time.clock_gettime_ns, _BOOT_CLOCK))

    def wall_us(self) -> int:
        return time.time_ns() // NS_PER_US

    def timeout_s(self, until_ns: int) -> float | None:
        return max(0, until_ns - self.now_ns()) / NS

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002 - this clock never jumps
        return _no_op


SYSTEM = SystemClock()


def ttl_ms(value: Seconds, *, setting: str = "ttl") -> int:
    """Return a checked ttl in milliseconds."""
    try:
        return _ttl_ms(value, setting)
    except TypeError:
        raise InvalidConfig(setting, value, _NUMBER) from None  # the cache refuses an unhashable value


@lru_cache(maxsize=64, typed=True)
def _ttl_ms(value: Seconds, setting: str) -> int:
    # Cached: a program has few ttls, and uses them over and over.
    seconds = seconds_of(value, setting=setting)
    if not TTL_MIN_S <= seconds <= TTL_MAX_S:
        rule = f"it must be between {TTL_MIN_S} and {TTL_MAX_S:.0f} seconds (31 days), such as 30"
        raise InvalidConfig(setting, value, rule)

    return round(seconds * 1000)


def duration_ms(value: Seconds, *, setting: str = "seconds") -> int:
    """Check a duration of 0 to the longest ttl and return it in milliseconds, rounded up: never shorter than asked."""
    if value is None:
        raise InvalidConfig(setting, value, _NUMBER)
    span_ns = timeout_ns(value, setting=setting)
    assert span_ns is not None
    if span_ns > TTL_MAX_S * NS:
        raise InvalidConfig(setting, value, f"it must be at most {TTL_MAX_S:.0f} seconds")
    return -(-span_ns // NS_PER_MS)


def timeout_ns(value: Seconds | None, *, setting: str = "timeout") -> int | None:
    """Return a checked timeout in nanoseconds; `None` waits for ever, 0 tries once."""
    if value is None:
        return None
    if isinstance(value, bool) and setting == "timeout":  # `acquire(False)` of other locks
        raise InvalidConfig(setting, value, "it must be a number of seconds: 0 tries once, None waits for ever")

    seconds = seconds_of(value, setting=setting)
    if not 0 <= seconds <= TIMEOUT_MAX_S:
        endless = ", or None to wait for ever" if setting == "timeout" else ""
        raise InvalidConfig(setting, value, f"it must be zero or more seconds, at most a year{endless}")

    return round(seconds * NS)


def parsed_seconds(text: str, *, setting: str) -> float:
    """Read a duration from a command line or a URL: `30s`, `250ms`, `5m`, `1h30m`, or a number of seconds."""
    import re  # noqa: PLC0415 - slow to import, and no program needs it for a lease

    parts = re.findall(r"(\d+(?:\.\d+)?|\.\d+)(ms|[smhd])", text)
    if text and "".join(map("".join, parts)) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidConfig(setting, text, "it must be a duration, such as 30s, 250ms, 5m, 1h30m, or 30 (seconds)")
    return seconds


def jittered(span_ns: int, seed: int) -> int:
    """Shorten a span by up to a tenth, so that processes do not stay in step. `seed`: a clock reading."""
    return span_ns - span_ns * (seed & 0xFFFF) // 0x9FFFF


def jittered_up(span_ns: int, seed: int) -> int:
    """Lengthen a span by up to a tenth, for the same reason. `seed`: a clock reading."""
    return 2 * span_ns - jittered(span_ns, seed)


def seconds_of(value: Seconds, *, setting: str) -> float:
    """Return a number of seconds or a timedelta as a finite number of seconds."""
    if hasattr(value, "total_seconds"):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidConfig(setting, value, _NUMBER)

    try:
        seconds = float(value)
    except OverflowError:
        raise InvalidConfig(setting, value, "it is larger than any useful length of time") from None
    if not math.isfinite(seconds):
        raise InvalidConfig(setting, value, "it must be a finite number of seconds")

    return seconds


def _no_op() -> None:
    return None
