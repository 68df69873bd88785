"""One client's knowledge of its servers: the run of each, its replicas, and how its clock runs.

Every connection begins with a greeting (INFO) that returns the run id. So the client notices a restarted server, or
another server in its place, before it sends a command. For a user without the right to INFO, the client cannot check.

With a single server, a new run may have forgotten everything. If other servers may take its place, another run proves
little, because the servers replicate their data: the client reports an event, and the next renewals show which leases
are lost.
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
from holdfast.rules import clock_jump

if TYPE_CHECKING:
    from holdfast.engines.redis.topology import Node

_JUMP_REMEMBERED_NS = 3600 * NS
_JUMPS_MAX = 100


class KnownServers:
    """All servers of one client, and the events that happened to them. Any thread may use it."""

    def __init__(self, *, follows: bool) -> None:
        self.follows = follows
        self.restarts = self.restarted_ns = 0
        self.lock = threading.Lock()
        self._identities: weakref.WeakKeyDictionary[Node, ServerIdentity] = weakref.WeakKeyDictionary()
        self._servers: tuple[str, ...] = ()
        self._events: deque[EngineEvent] = deque()

    def identity_of(self, node: Node) -> ServerIdentity:
        """Return the identity of this node: the same object each time."""
        with self.lock:
            return self._identities.setdefault(node, ServerIdentity(self, node.url))

    def record_servers(self, servers: tuple[str, ...]) -> None:
        """Record the servers that answer now; an event reports a change, but not the first time."""
        with self.lock:
            before, self._servers = self._servers, servers or self._servers
        if before and before != self._servers:
            detail = f"{', '.join(before)} answered before, {', '.join(servers)} now"
            self.add_event(EngineEvent("engine_restarted", None, detail))

    def add_event(self, event: EngineEvent) -> None:
        self._events.append(event)

    def events(self) -> list[EngineEvent]:
        """Return the events since the last call."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events


class ServerIdentity:
    """One node as one client knows it.

    It stores the replicas by the run that has them. When another server takes the place of the node, a reply of the
    former server may still arrive: the client must not expect the former server's replicas at the next one.
    """

    def __init__(self, known_servers: KnownServers, url: str) -> None:
        self._known_servers = known_servers
        self._url = url
        self._replicas: dict[str, frozenset[str]] = {}
        self._run_id = ""
        self.alone = False  # whether it is known to be no part of a cluster
        self._reading: clock_jump.Reading | None = None
        self._jumps: list[tuple[float, int]] = []  # by how much, and when

    @property
    def run_id(self) -> str:
        """The run that answers now; empty for a user without the right to INFO."""
        return self._run_id

    def record_greeting(self, reply: Any, sent_ns: int, came_ns: int) -> str:
        """Record the reply to a new connection's greeting, and return the run id that it gives."""
        info, known_servers = Info(reply), self._known_servers
        run_id, clock_us = info.get("run_id", ""), info.number("server_time_usec")
        with known_servers.lock:
            if run_id and self._run_id and run_id != self._run_id:
                if not known_servers.follows:
                    known_servers.restarted_ns = SYSTEM.now_ns()  # first: a reader of the new count needs its time
                    known_servers.restarts += 1
                detail = f"{self._url}: run {self._run_id[:12]} has ended, run {run_id[:12]} answers"
                known_servers.add_event(EngineEvent("engine_restarted", None, detail))
            self._run_id = run_id or self._run_id
        mode = info.get("redis_mode") or info.get("server_mode")
        self.alone = mode not in (None, "cluster")
        if clock_us is not None:
            self.read_clock(clock_us, sent_ns, came_ns)
        return run_id

    def greeting_lost(self, error: ReplyLost) -> Unavailable:
        """Return the error for a lost greeting: no command was sent yet, so the server was not reached."""
        return Unavailable("redis", MOVING if self._known_servers.follows else "unreachable", error.detail)

    def forget_run(self) -> None:
        """Forget the run id, because another server answers as this node from now on."""
        with self._known_servers.lock:
            self._run_id = ""

    def read_clock(self, clock_us: int, sent_ns: int, came_ns: int) -> None:
        """Compare a time of the server, from a reply that came at `came_ns`, with the last one."""
        now = clock_jump.reading(clock_us, sent_ns, came_ns)
        with self._known_servers.lock:
            before, self._reading = self._reading, now
            jump_s = 0.0 if before is None else clock_jump.jump_s(before, now)
            if jump_s:
                self._jumps = [*self._recent_jumps(came_ns), (jump_s, came_ns)][-_JUMPS_MAX:]
                direction = "forward: leases end earlier" if jump_s > 0 else "back: leases end later"
                detail = f"{self._url}: the server's clock went {direction}"
                self._known_servers.add_event(EngineEvent("clock_jumped", jump_s, detail))

    def add_replicas(self, run_id: str, replicas: frozenset[str]) -> bool:
        """Record the replicas that this run has now, and return whether one is new.

        A replica that has gone stays known.
        """
        with self._known_servers.lock:
            before = self._replicas.get(run_id, frozenset())
            self._replicas[run_id] = before | replicas
            return not replicas <= before

    def known_replicas(self, run_id: str) -> frozenset[str]:
        """Return the replicas that this run was ever seen to have."""
        with self._known_servers.lock:
            return self._replicas.get(run_id, frozenset())

    def largest_jumps_s(self) -> tuple[float, float]:
        """Return the largest jumps of the clock within the last hour, forward and back.

        A clock that was set forward and then right again has still ended leases early.
        """
        with self._known_servers.lock:
            jumps = [jump_s for jump_s, _ in self._recent_jumps(SYSTEM.now_ns())]
        return max([0.0, *jumps]), -min([0.0, *jumps])

    def _recent_jumps(self, now_ns: int) -> list[tuple[float, int]]:
        return [jump for jump in self._jumps if now_ns - jump[1] < _JUMP_REMEMBERED_NS]
