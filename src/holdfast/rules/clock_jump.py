"""Detect that the engine's clock has jumped, from readings that took a known time to arrive.

This module never compares two clocks directly; only the change of their difference counts. The engine read its clock at
some moment between the request and the arrival of the reading. A jump is a change that no moment in between explains.
"""

from __future__ import annotations

from typing import NamedTuple

# A jump must exceed the round trip by this much. Healthy clocks also differ in rate, by far less than 1/1000.
BOUND_US = 500_000
RATE = 1000


class Reading(NamedTuple):
    """How far the engine's clock is ahead of the local one, at least and at most, and the local time. Microseconds."""

    least_us: int
    most_us: int
    at_us: int


def reading(clock_us: int, sent_ns: int, received_ns: int) -> Reading:
    """Return the reading for an engine's clock of `clock_us`, requested and received at these local times."""
    return Reading(clock_us - received_ns // 1000, clock_us - sent_ns // 1000, received_ns // 1000)


def jump_s(before: Reading, now: Reading) -> float:
    """Return by how many seconds the engine's clock has jumped between two readings, at least; 0 if it has not."""
    bound_us = BOUND_US + abs(now.at_us - before.at_us) // RATE
    forward_us, back_us = now.least_us - before.most_us, before.least_us - now.most_us
    if forward_us > bound_us:
        return forward_us / 1e6
    return -back_us / 1e6 if back_us > bound_us else 0.0
