"""From samples to figures. Pure: no clock, no input or output, so that every figure can be checked by hand.

A grant is `(worker, asked, granted, releasing)`: when a worker began to ask, when it had the lock, and when it began
to give it back, in seconds of one clock that all processes share.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from itertools import pairwise
from typing import NamedTuple


class Grant(NamedTuple):
    worker: str
    asked: float
    granted: float
    releasing: float


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def jain(counts: list[int]) -> float:
    """How even the shares are: 1 if all are alike, 1/n if one has everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def overlaps(grants: list[Grant]) -> int:
    """How often somebody got the lock before the one who had it began to give it back."""
    found, held_until = 0, float("-inf")
    for grant in sorted(grants, key=lambda grant: grant.granted):
        found += grant.granted < held_until
        held_until = max(held_until, grant.releasing)
    return found


def lags(grants: list[Grant]) -> list[float]:
    """For each one who waited: from the first release that it could see until it had the lock, overtaking included."""
    ordered = sorted(grants, key=lambda grant: grant.releasing)
    found = []
    for grant in grants:
        seen = next((other for other in ordered if other.releasing > grant.asked and other is not grant), None)
        if seen is not None and seen.releasing < grant.granted:
            found.append(grant.granted - seen.releasing)
    return found


def contention(grants: list[Grant], workers: list[str], start: float, until: float) -> dict[str, float]:
    """What a contended run was like: its rate, its gaps, its fairness, its waits."""
    ordered = sorted(grants, key=lambda grant: grant.granted)
    inside = [grant for grant in ordered if start <= grant.granted < until]
    if len(inside) < 2:
        return {"grants": len(inside)}
    following = list(pairwise(inside))
    gaps = [after.granted - before.releasing for before, after in following]
    waits = [grant.granted - grant.asked for grant in ordered]
    section = statistics.mean(grant.releasing - grant.granted for grant in inside)
    counted = Counter(grant.worker for grant in inside)
    counts = [counted[worker] for worker in workers]
    rate = len(inside) / (until - start)
    return {
        "grants": len(inside),
        "grants_per_s": rate,
        "of_ideal": rate * section,
        "section_ms": section * 1e3,
        "gap_p50_us": percentile(gaps, 0.5) * 1e6,
        "gap_p99_us": percentile(gaps, 0.99) * 1e6,
        "to_itself": sum(before.worker == after.worker for before, after in following) / len(following),
        "least": min(counts),
        "most": max(counts),
        "evenness": min(counts) / max(counts),
        "jain": jain(counts),
        "wait_p50_ms": percentile(waits, 0.5) * 1e3,
        "wait_p99_ms": percentile(waits, 0.99) * 1e3,
        "wait_max_ms": max(waits) * 1e3,
        "wait_of_fifo": max(waits) / (section * (len(workers) - 1)) if len(workers) > 1 else 0.0,
    }


class Spread(NamedTuple):
    """One figure over all rounds."""

    median: float
    low: float
    high: float


def spread(values: list[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def over_rounds(rounds: list[dict[str, float]]) -> dict[str, Spread]:
    """Median, least and most of every figure that all rounds have."""
    shared = set.intersection(*(set(figures) for figures in rounds))
    return {key: spread([figures[key] for figures in rounds]) for key in rounds[0] if key in shared}


def ratios(values: list[float], bases: list[float]) -> list[float]:
    """Round by round: how many times the base, so that what slowed down a whole round cancels out."""
    return [value / base for value, base in zip(values, bases, strict=True)]
