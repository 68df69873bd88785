"""Detect that the engine's clock has jumped, from readings that took a known time to arrive.

Two clocks are never compared directly; only the change of their difference counts. The engine took a reading at some
moment between the request and its arrival. A jump is a change that no moment in between can explain.
"""

from __future__ import annotations

from typing import NamedTuple

# How much a jump must exceed what the round trip explains. Sound clocks also differ in rate, by far less than 1/1000.
BOUND_US = 500_000
RATE = 1000


class Reading(NamedTuple):
    """How far the other clock is ahead of ours, at least and at most, and when by our clock. Microseconds."""

    least_us: int
    most_us: int
    at_us: int


def reading(clock_us: int, asked_ns: int, came_ns: int) -> Reading:
    """Return a reading of the other clock that was requested at `asked_ns` and arrived at `came_ns` by our clock."""
    return Reading(clock_us - came_ns // 1000, clock_us - asked_ns // 1000, came_ns // 1000)


def jump_s(before: Reading, now: Reading) -> float:
    """Return by how many seconds the other clock has jumped between two readings, at least; 0 if it has not."""
    bound_us = BOUND_US + abs(now.at_us - before.at_us) // RATE
    forward_us, back_us = now.least_us - before.most_us, before.least_us - now.most_us
    if forward_us > bound_us:
        return forward_us / 1e6
    return -back_us / 1e6 if back_us > bound_us else 0.0
