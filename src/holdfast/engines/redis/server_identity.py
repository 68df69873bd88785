"""What one client has seen of its servers: which run of each, which replicas, and how their clocks go.

Every connection begins with a greeting that tells the run id, so that a server which began anew, or another one in its
place, is known before it is asked for anything. A user without the right to ask is told nothing, and does without.

Where there is one server, a new run of it may have forgotten everything. Where others may take its place, another run
says little: what was replicated is there. It is an event then, and the renewals that follow tell what is lost.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from holdfast.clock import NS, SYSTEM
from holdfast.engines import EngineEvent
from holdfast.engines.redis.server_info import Info
from holdfast.errors import MOVING, ReplyLost, Unavailable
from holdfast.rules import clock_jump as drift

if TYPE_CHECKING:
    from holdfast.engines.redis.topology import Node

_JUMP_REMEMBERED_NS = 3600 * NS
_JUMPS = 100


class KnownServers:
    """All servers of one client, and what has happened to them. Any thread may tell it something."""

    def __init__(self, *, follows: bool) -> None:
        self.follows = follows
        self.restarts = self.restarted_ns = 0
        self.lock = threading.Lock()
        self._sights: weakref.WeakKeyDictionary[Node, ServerIdentity] = weakref.WeakKeyDictionary()
        self._servers: tuple[str, ...] = ()
        self._news: deque[EngineEvent] = deque()

    def of(self, node: Node) -> ServerIdentity:
        """What is known of this node."""
        with self.lock:
            return self._sights.setdefault(node, ServerIdentity(self, node.url))

    def moved(self, servers: tuple[str, ...]) -> None:
        """These servers answer now; the first time that it is said, nothing has changed."""
        with self.lock:
            before, self._servers = self._servers, servers or self._servers
        if before and before != self._servers:
            self.tell(
                EngineEvent("engine_restarted", None, f"{', '.join(before)} answered before, {', '.join(servers)} now")
            )

    def tell(self, events: EngineEvent) -> None:
        self._news.append(events)

    def events(self) -> list[EngineEvent]:
        """What has happened since this was asked last."""
        told = []
        while self._news:
            told.append(self._news.popleft())
        return told


class ServerIdentity:
    """One node as one client knows it.

    Its replicas are known by the run that has them. When another server takes its place an answer of the former one may
    still be on its way: what that one has must not be looked for at the next.
    """

    def __init__(self, known_servers: KnownServers, url: str) -> None:
        self._witness = known_servers
        self._url = url
        self._known: dict[str, frozenset[str]] = {}
        self._run_id = ""
        self._reading: drift.Reading | None = None
        self._jumps: list[tuple[float, int]] = []  # by how much, and when

    def greeted(self, reply: Any, asked_ns: int, came_ns: int) -> str:
        """A connection has been opened, and this was the answer to its greeting. It leads to the run that is given."""
        info, known_servers = Info(reply), self._witness
        run_id, clock_us = info.get("run_id", ""), info.number("server_time_usec")
        with known_servers.lock:
            if run_id and self._run_id and run_id != self._run_id:
                if not known_servers.follows:
                    known_servers.restarted_ns = SYSTEM.now_ns()  # first: whoever sees the new epoch knows since when
                    known_servers.restarts += 1
                detail = f"{self._url}: run {self._run_id[:12]} has ended, run {run_id[:12]} answers"
                known_servers.tell(EngineEvent("engine_restarted", None, detail))
            self._run_id = run_id or self._run_id
        if clock_us is not None:
            self.timed(clock_us, asked_ns, came_ns)
        return run_id

    def unanswered(self, error: ReplyLost) -> Unavailable:
        """The greeting was lost: nothing was asked for yet, so the server could not be reached."""
        return Unavailable("redis", MOVING if self._witness.follows else "unreachable", error.detail)

    def another(self) -> None:
        """Another server is known to answer as this node from now on."""
        with self._witness.lock:
            self._run_id = ""

    def timed(self, clock_us: int, asked_ns: int, came_ns: int) -> None:
        """Something was answered at that time of the server."""
        now = drift.reading(clock_us, asked_ns, came_ns)
        with self._witness.lock:
            before, self._reading = self._reading, now
            jump_s = 0.0 if before is None else drift.jump_s(before, now)
            if jump_s:
                self._jumps = [*self._lately(came_ns), (jump_s, came_ns)][-_JUMPS:]
                way = "forward: leases end earlier" if jump_s > 0 else "back: leases end later"
                self._witness.tell(EngineEvent("clock_jumped", jump_s, f"{self._url}: the server's clock went {way}"))

    def listed(self, run_id: str, replicas: frozenset[str]) -> bool:
        """These replicas are linked to that run now; true if one was not known. One that is gone stays known."""
        with self._witness.lock:
            before = self._known.get(run_id, frozenset())
            self._known[run_id] = before | replicas
            return not replicas <= before

    def known(self, run_id: str) -> frozenset[str]:
        """The replicas that this run was seen to have."""
        with self._witness.lock:
            return self._known.get(run_id, frozenset())

    def jumped_s(self) -> tuple[float, float]:
        """By how much the clock was seen to jump within the last hour, at most: forward, and back.

        A clock that was set forward and then right again has ended leases early all the same.
        """
        with self._witness.lock:
            jumps = [jump_s for jump_s, _ in self._lately(SYSTEM.now_ns())]
        return max([0.0, *jumps]), -min([0.0, *jumps])

    def _lately(self, now_ns: int) -> list[tuple[float, int]]:
        return [jump for jump in self._jumps if now_ns - jump[1] < _JUMP_REMEMBERED_NS]
