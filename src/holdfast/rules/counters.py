"""Counters: values stored under a name without a holder, a waiting line or a fence.

Rate limits, budgets and the markers of `once` are counters. A rule takes the stored value (`None` if there is none) and
a command, and returns the new value and the answer. Engines store counters under (kind, name), apart from leases, so a
lease and a counter may have the same name.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from holdfast.commands import Answer, Hit
from holdfast.rules import budget, limit, once
from holdfast.rules.lease_record import Moment

_DELETE_MAX = 4

CounterRule = Callable[[Any, Any, Moment], tuple[Any, Answer]]


def until_us(counter: Any, command: Any) -> int:
    """Return until when the engine must store the counter, on its calendar."""
    if type(command) is Hit:
        return limit.forget_at_us(counter, command)
    return counter.until_us if isinstance(counter, once.StoredMarker) else budget.forget_at_us(counter)


def unpacked(kind: str, stored: Any) -> Any:
    """Return a counter from its stored form: numbers, texts, lists and dictionaries, as JSON gives them."""
    if kind == "o":
        return once.StoredMarker(*stored)
    return budget.unpacked(stored) if kind == "b" else limit.unpacked(kind, stored)


class MemoryCounters:
    """Counters in memory, by kind and name: for the memory engine, and for a rate limit whose engine is unavailable.

    Memory is bounded: every command deletes a few counters that have ended. Not thread-safe: the caller holds a lock.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], tuple[Any, int]] = {}
        self._ends: list[tuple[int, tuple[str, str]]] = []

    def __len__(self) -> int:
        return len(self.known)

    def answer(self, rule: CounterRule, command: Any, moment: Moment) -> Answer:
        """Apply the rule to the counter that the command names, and return the answer."""
        key = (command.kind, command.name)
        before = self.known.get(key, (None, 0))[0]
        after, answer = rule(before, command, moment)
        if after is None:
            self.known.pop(key, None)
        elif after is not before:
            ends_us = until_us(after, command)
            if before is None:
                heapq.heappush(self._ends, (ends_us, key))
            self.known[key] = (after, ends_us)
        self._forget(moment.wall_us)
        return answer

    def _forget(self, now_us: int) -> None:
        for _ in range(_DELETE_MAX):
            if not self._ends or self._ends[0][0] > now_us:
                return
            key = self._ends[0][1]
            ends_us = self.known.get(key, (None, 0))[1]
            if ends_us > now_us:
                heapq.heapreplace(self._ends, (ends_us, key))
            else:
                # The counter goes before its end does: an interrupt in between leaves nothing behind.
                self.known.pop(key, None)
                heapq.heappop(self._ends)
