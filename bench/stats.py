"""From samples to figures. Pure functions without clock or I/O, so that every figure can be checked by hand.

A grant is `(worker, requested, granted, releasing)`: when a worker began to request the lock, when it had it, and when
it began to release it, in seconds of one clock that all processes share.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from itertools import pairwise
from typing import NamedTuple


class Grant(NamedTuple):
    """One turn of one worker."""

    worker: str
    requested: float
    granted: float
    releasing: float


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def jain(counts: list[int]) -> float:
    """Return Jain's fairness index: 1 if all shares are equal, 1/n if one worker has everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def overlaps(grants: list[Grant]) -> int:
    """Return how often a worker got the lock before its holder began to release it."""
    found, held_until = 0, float("-inf")
    for grant in sorted(grants, key=lambda grant: grant.granted):
        found += grant.granted < held_until
        held_until = max(held_until, grant.releasing)
    return found


def lags(grants: list[Grant]) -> list[float]:
    """Return the lag of each worker that waited: from the first release after its request until its grant.

    The time in which others overtook it counts.
    """
    ordered = sorted(grants, key=lambda grant: grant.releasing)
    found = []
    for grant in grants:
        seen = next((other for other in ordered if other.releasing > grant.requested and other is not grant), None)
        if seen is not None and seen.releasing < grant.granted:
            found.append(grant.granted - seen.releasing)
    return found


def contention(grants: list[Grant], workers: list[str], start: float, until: float) -> dict[str, float]:
    """Return rate, gaps, fairness and waits of a contended run."""
    ordered = sorted(grants, key=lambda grant: grant.granted)
    inside = [grant for grant in ordered if start <= grant.granted < until]
    if len(inside) < 2:
        return {"grants": len(inside)}
    following = list(pairwise(inside))
    gaps = [after.granted - before.releasing for before, after in following]
    waits = [grant.granted - grant.requested for grant in ordered]
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
    """One figure over all rounds: its median, its least and its greatest value."""

    median: float
    low: float
    high: float


def spread(values: list[float]) -> Spread:
    """Return median, least and greatest value."""
    return Spread(statistics.median(values), min(values), max(values))


def over_rounds(rounds: list[dict[str, float]]) -> dict[str, Spread]:
    """Return the spread of every figure that all rounds have."""
    shared = set.intersection(*(set(figures) for figures in rounds))
    return {key: spread([figures[key] for figures in rounds]) for key in rounds[0] if key in shared}


def ratios(values: list[float], bases: list[float]) -> list[float]:
    """Return the ratio of each round: a disturbance of a whole round cancels out."""
    return [value / base for value, base in zip(values, bases, strict=True)]


def nested_median(groups: list[list[float]], resamples: int = 500) -> Spread:
    """Return the median of all values and its 95 % range, by a bootstrap over groups and over the values of each.

    Values of one group have something in common (they come from one pair of processes), so that the range of a median
    over all values alone would be too narrow.
    """
    rng = random.Random(len(groups))  # the same values have the same range
    found = sorted(
        statistics.median(
            [value for group in rng.choices(groups, k=len(groups)) for value in rng.choices(group, k=len(group))]
        )
        for _ in range(resamples)
    )
    return Spread(
        statistics.median([value for group in groups for value in group]),
        percentile(found, 0.025),
        percentile(found, 0.975),
    )
