"""What one client has seen of its server: which run of it, which replicas, and how its clock goes.

Every connection begins with a greeting that tells the run id, so that a server which began anew, or another one in its
place, is known before it is asked for anything. A user without the right to ask is told nothing, and does without.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from holdfast.clock import NS, SYSTEM
from holdfast.engines import News
from holdfast.engines.redis.facts import Info
from holdfast.rules import drift

_JUMP_REMEMBERED_NS = 3600 * NS


class Witness:
    """One server as one client knows it. Any thread may tell it something."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.epoch = 0
        self.known: frozenset[str] = frozenset()
        self._run_id = ""
        self._reading: drift.Reading | None = None
        self._jumped_s, self._jumped_ns = 0.0, 0
        self._news: deque[News] = deque()

    def greeted(self, reply: Any, asked_ns: int, came_ns: int) -> None:
        """A connection has been opened, and this was the answer to its greeting."""
        info = Info(reply)
        run_id, clock_us = info.get("run_id", ""), info.number("server_time_usec")
        with self._lock:
            if run_id and self._run_id and run_id != self._run_id:
                self.epoch += 1
                self.known = frozenset()  # another server has replicas of its own
                detail = f"run {self._run_id[:12]} has ended, run {run_id[:12]} answers"
                self._news.append(News("engine replaced", None, detail))
            self._run_id = run_id or self._run_id
        if clock_us is not None:
            self.timed(clock_us, asked_ns, came_ns)

    def timed(self, clock_us: int, asked_ns: int, came_ns: int) -> None:
        """Something was answered at that time of the server."""
        now = drift.reading(clock_us, asked_ns, came_ns)
        with self._lock:
            before, self._reading = self._reading, now
            jump_s = 0.0 if before is None else drift.jump_s(before, now)
            if jump_s:
                self._jumped_s, self._jumped_ns = jump_s, came_ns
                way = "forward: leases end earlier" if jump_s > 0 else "back: leases end later"
                self._news.append(News("clock jumped", jump_s, f"the server's clock went {way}"))

    def listed(self, replicas: frozenset[str]) -> bool:
        """These replicas are linked now; true if one of them was not known. One that is gone stays known."""
        with self._lock:
            grown = not replicas <= self.known
            self.known |= replicas
            return grown

    @property
    def jumped_s(self) -> float:
        """By how much the clock was seen to jump within the last hour."""
        with self._lock:
            return self._jumped_s if SYSTEM.now_ns() - self._jumped_ns < _JUMP_REMEMBERED_NS else 0.0

    def news(self) -> list[News]:
        """What has happened since this was asked last."""
        told = []
        while self._news:
            told.append(self._news.popleft())
        return told
