"""Counters in memory: for the memory engine, and for a rate limit whose engine is unavailable.

Memory is bounded: every command deletes a few counters that have ended.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from holdfast.rules.counters import until_us

if TYPE_CHECKING:
    from holdfast.commands import Answer
    from holdfast.rules import Moment
    from holdfast.rules.counters import CounterRule

_DELETE_MAX = 4


class MemoryCounters:
    """The counters, by kind and name. Not thread-safe: the caller holds a lock."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Any, int]] = {}
        self._ends: list[tuple[int, tuple[str, str]]] = []

    def __len__(self) -> int:
        return len(self._known)

    def answer(self, rule: CounterRule, command: Any, moment: Moment) -> Answer:
        """Apply the rule to the counter that the command names, and return the answer."""
        key = (command.kind, command.name)
        before = self._known.get(key, (None, 0))[0]
        after, answer = rule(before, command, moment)
        if after is None:
            self._known.pop(key, None)
        elif after is not before:
            ends_us = until_us(after, command)
            if before is None:
                heapq.heappush(self._ends, (ends_us, key))
            self._known[key] = (after, ends_us)
        self._forget(moment.wall_us)
        return answer

    def _forget(self, now_us: int) -> None:
        for _ in range(_DELETE_MAX):
            if not self._ends or self._ends[0][0] > now_us:
                return
            _, key = heapq.heappop(self._ends)
            ends_us = self._known.get(key, (None, 0))[1]
            if ends_us > now_us:
                heapq.heappush(self._ends, (ends_us, key))
            else:
                self._known.pop(key, None)
