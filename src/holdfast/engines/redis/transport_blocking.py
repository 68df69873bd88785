"""The blocking form over Redis: a few links, each taken for one exchange.

A free link is used again; one that has been idle for a while is looked at first, so that a restarted server is not
mistaken for a lost reply. The keeper has a form, and so a link, of its own.

A thread that waits blocks on the server for its first moments, with the acquire that confirms its offer already sent
behind the blocking command: the hand-over then costs it no round trip. After that it listens, as tasks do, because a
long wait must neither hold a connection nor ask again and again.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import hiredis

from holdfast.clock import NS, NS_PER_MS, SYSTEM
from holdfast.commands import ASKING, Busy, ChangePool, Receive
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.pool import extra_s
from holdfast.engines.redis.replies import answered
from holdfast.engines.redis.routing import NodeConnections, bounded, leave, unknown_script
from holdfast.engines.redis.server_info import GREETING
from holdfast.engines.redis.transport_base import RedisTransport
from holdfast.engines.transport import BlockingTransport
from holdfast.errors import ReplyLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.commands import AcquireCommand, Answer, Command
    from holdfast.engines.redis.engine import RedisEngine
    from holdfast.engines.redis.server_identity import ServerIdentity
    from holdfast.engines.redis.topology import Node

T = TypeVar("T")

_IDLE_S = 0.5
_FREE_MAX = 16
_POPPING_MAX = 16
_POP_MAX_NS = 1_700 * NS_PER_MS
# A server ends a blocking command on its own tick, ten times a second.
_TICK_S = 0.5


class ConnectionPool(NodeConnections):
    """The links of one form to one node that are free."""

    def __init__(self, node: Node, sight: ServerIdentity, *, left: bool) -> None:
        super().__init__(node, sight, left=left)
        self._free: deque[RedisConnection] = deque()

    def take(self, limit_s: float) -> RedisConnection:
        while True:
            try:
                link = self._free.pop()
            except IndexError:
                return self._greeted(RedisConnection(self.node, limit_s), limit_s)
            now_s = monotonic()
            if now_s - link.used_s < _IDLE_S or link.alive():
                link.used_s = now_s
                return link

    def _greeted(self, link: RedisConnection, limit_s: float) -> RedisConnection:
        """Learn which run of which server this is, before it is asked for anything."""
        asked_ns = SYSTEM.now_ns()
        try:
            reply = link.exchange(GREETING, 1, limit_s)[0]
        except ReplyLost as error:
            raise self.sight.unanswered(error) from error
        link.run_id = self.sight.greeted(reply, asked_ns, SYSTEM.now_ns())
        return link

    def give_back(self, link: RedisConnection) -> None:
        """Keep a few for the next ones; whoever comes back after the end finds nobody to keep it for."""
        if self.left or len(self._free) >= _FREE_MAX:
            link.close()
        else:
            self._free.append(link)

    def drop(self) -> None:
        while self._free:
            self._free.pop().close()


def _pop_ns(ttl_ms: int) -> int:
    """How long a waiter may block on the server.

    The lease that comes of it counts from the moment its acquire was sent, so most of its ttl must still be left. And
    a long wait must not hold a connection.
    """
    return min(ttl_ms * NS_PER_MS // 3, _POP_MAX_NS)


class RedisBlockingTransport(RedisTransport[ConnectionPool], BlockingTransport):
    """What threads use."""

    def __init__(self, engine: RedisEngine, *, owns: bool) -> None:
        super().__init__(engine)
        self._owns = owns
        self._closed = False
        self._blocked_connections: set[RedisConnection] = set()
        self._seats: set[str] = set()  # waiters that block, or are about to
        self._listening: set[str] = set()  # waiters that listen, because they have blocked or never may

    def apply(self, command: Command, until_ns: int | None = None) -> Answer | Awaitable[Answer]:
        """A waiter that will pop its bell need not be rung, so nothing is kept for it."""
        pops = False
        if type(command) in ASKING:
            ask: Any = command
            pops = ask.wait and self._may_pop(ask, until_ns)
            if not pops:
                if ask.wait:
                    self._listening.add(ask.token)  # what the server is told now is what the waiter must do
                return self._acquire(ask, until_ns)
        try:
            return self._ask(command, until_ns, pops=pops)
        except Unavailable as trouble:
            return self._follow_one(command, trouble, until_ns, pops=pops)

    async def answer(self, command: Command, until_ns: int | None) -> Answer:
        try:
            return self._ask(command, until_ns)
        except Unavailable as trouble:
            return await self._follow_one(command, trouble, until_ns)

    def _ask(self, command: Command, until_ns: int | None, *, pops: bool = False) -> Answer:
        """The short way of one command: nothing is in its way."""
        engine = self._engine
        limit_s = engine.wire_s if until_ns is None else bounded(engine.wire_s, until_ns)
        if type(command) is ChangePool:
            limit_s += extra_s(command)
        lane = self._only or self._connections_of(command.name)
        link = lane.take(limit_s)
        reply = link.ask(engine.packer.pack(command, pops=pops), limit_s)
        if type(reply) is hiredis.ReplyError and unknown_script(reply):
            reply = link.ask(engine.packer.pack(command, whole=True, pops=pops), limit_s)
        lane.give_back(link)
        if type(reply) is hiredis.ReplyError:
            raise self._refused(lane.node.url, reply)
        return answered(type(command), reply)

    def _new_connections(self, node: Node) -> ConnectionPool:
        return ConnectionPool(node, self._engine.known_servers.of(node), left=self._closed)

    async def _send_all(self, lane: ConnectionPool, commands: bytes, count: int, limit_s: float) -> list[Any]:
        link = lane.take(limit_s)
        replies = link.exchange(commands, count, limit_s)
        lane.give_back(link)
        return replies

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        return call()

    def _links_of(self, lane: ConnectionPool) -> ConnectionPool:
        return lane

    async def ensure_connected(self, until_ns: int) -> None:
        only, lanes = self._engine.topology.only, list(self._connections.values())
        if only is not None:
            lanes = [self.connections_at(only)]
        for before, lane in enumerate(lanes):
            if not lane.failing:  # that one is found out about by whatever is due there
                try:
                    lane.give_back(lane.take(self._limit_s(until_ns) / (len(lanes) - before)))
                except Unavailable:
                    self._fails(lane)
                    raise

    def _may_pop(self, ask: AcquireCommand, until_ns: int | None) -> bool:
        """Whether this waiter will block on the server first: once, for short, and while there are seats for it."""
        if isinstance(ask, Receive) or ask.token in self._listening or len(self._seats) >= _POPPING_MAX:
            return False
        return until_ns is None or until_ns - SYSTEM.now_ns() >= _pop_ns(ask.ttl_ms)

    async def wait(self, ask: AcquireCommand, until_ns: int) -> Answer | None:
        if isinstance(ask, Receive) or ask.token in self._listening:
            return await super().wait(ask, until_ns)
        may_pop = self._may_pop(ask, until_ns)
        self._listening.add(ask.token)
        self._seats.add(ask.token)
        try:
            # Counted after it has sat down: of two who come at once, both would else find the last seat free.
            if not may_pop or len(self._seats) > _POPPING_MAX:
                return None  # asked again, it says that it listens
            return self._pop(ask, _pop_ns(ask.ttl_ms) / NS)
        finally:
            self._seats.discard(ask.token)

    def _pop(self, ask: AcquireCommand, seconds: float) -> Answer | None:
        """Block until the lease is offered, and confirm it in the same breath."""
        packer = self._engine.packer
        lane = self._only or self._connections_of(ask.name)
        # The acquire that is sent ahead also says that from then on it listens: a ring that comes at once must be kept.
        self._listener.waiter_registry.expect(ask.token)
        try:
            link = lane.take(seconds)
            self._blocked_connections.add(link)
            try:
                commands = packer.pack_pop(ask, seconds) + packer.pack(ask)
                reply = link.exchange(commands, 2, seconds + _TICK_S)[1]
            finally:
                self._blocked_connections.discard(link)
        except Unavailable:
            self._fails(lane)
            raise
        lane.give_back(link)
        if isinstance(reply, hiredis.ReplyError):
            return None  # asked again, it is told in full
        answer = answered(type(ask), reply)
        if not isinstance(answer, Busy):
            self.forget(ask.token)
        return answer

    def forget(self, token: str) -> None:
        super().forget(token)
        self._listening.discard(token)

    def wake_all(self) -> None:
        self._cut_poppers()
        super().wake_all()

    async def close(self) -> None:
        self._closed = self._owns
        self._end()
        if self._owns:
            self._engine.close()

    def _end(self) -> None:
        self._only = None
        while self._connections:
            leave(self._connections.popitem()[1])

    def tidy(self) -> None:
        super().tidy()
        if self._engine.topology.only is not None:
            self._cut_poppers()  # where they block, nobody will ring

    def _cut_poppers(self) -> None:
        for link in self._blocked_connections.copy():
            link.cut()

    def forked(self) -> None:
        """In a child: the links are the parent's, and nothing is said on them."""
        self._end()
        while self._blocked_connections:
            self._blocked_connections.pop().close()
        self._seats.clear()
        self._listening.clear()
