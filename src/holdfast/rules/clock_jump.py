"""Whether a clock has jumped, from readings of it that took a known time to arrive.

Two clocks are never compared as such: only how their difference changes. A reading lies somewhere between the moment it
was asked for and the moment it came, so a jump is what no moment in between can explain.
"""

from __future__ import annotations

from typing import NamedTuple

# Beyond what the round trip can explain. Honest clocks also differ in rate, by far less than one part in a thousand.
BOUND_US = 500_000
RATE = 1000


class Reading(NamedTuple):
    """How far the other clock is ahead of ours: at least, at most; and when, by ours. Microseconds."""

    least_us: int
    most_us: int
    at_us: int


def reading(clock_us: int, asked_ns: int, came_ns: int) -> Reading:
    """A reading of the other clock that was asked for and came then, by ours."""
    return Reading(clock_us - came_ns // 1000, clock_us - asked_ns // 1000, came_ns // 1000)


def jump_s(before: Reading, now: Reading) -> float:
    """By how many seconds the other clock has jumped in between, at least; 0 if it need not have."""
    bound_us = BOUND_US + abs(now.at_us - before.at_us) // RATE
    forward_us, back_us = now.least_us - before.most_us, before.least_us - now.most_us
    if forward_us > bound_us:
        return forward_us / 1e6
    return -back_us / 1e6 if back_us > bound_us else 0.0
