"""The blocking transport for Redis: a few connections, each used for one exchange at a time.

The transport reuses free connections. It first checks one that has been idle for a while, so that it does not mistake a
restarted server for a lost reply. The keeper has its own transport, and so its own connections.

A waiting thread first blocks on the server, and sends the acquire that confirms its offer right behind the blocking
command, so that the hand-over costs no round trip. After that the thread listens for wake-ups, as tasks do, because a
long wait must neither hold a connection nor repeat its command.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import hiredis

from holdfast.clock import NS, NS_PER_MS, SYSTEM
from holdfast.commands import WAITABLE, Busy, ChangePool, Receive
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.pool import extra_s
from holdfast.engines.redis.replies import answered
from holdfast.engines.redis.routing import NodeConnections, bounded, retire, unknown_script
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
    """The free connections of one transport to one node."""

    def __init__(self, node: Node, identity: ServerIdentity, *, retired: bool) -> None:
        super().__init__(node, identity, retired=retired)
        self._free: deque[RedisConnection] = deque()

    def take(self, limit_s: float) -> RedisConnection:
        while True:
            try:
                connection = self._free.pop()
            except IndexError:
                return self._greeted(RedisConnection(self.node, limit_s), limit_s)
            now_s = monotonic()
            if now_s - connection.used_s < _IDLE_S or connection.alive():
                connection.used_s = now_s
                return connection

    def _greeted(self, connection: RedisConnection, limit_s: float) -> RedisConnection:
        """Learn which run of which server the connection leads to, before the first command."""
        sent_ns = SYSTEM.now_ns()
        try:
            reply = connection.exchange(GREETING, 1, limit_s)[0]
        except ReplyLost as error:
            raise self.identity.greeting_lost(error) from error
        connection.run_id = self.identity.record_greeting(reply, sent_ns, SYSTEM.now_ns())
        return connection

    def give_back(self, connection: RedisConnection) -> None:
        """Keep the connection for the next exchange, or close it if there are enough or the node is retired."""
        if self.retired or len(self._free) >= _FREE_MAX:
            connection.close()
        else:
            self._free.append(connection)

    def close_idle(self) -> None:
        with suppress(IndexError):  # several threads may take connections, and close them, at once
            while True:
                self._free.pop().close()


def _pop_ns(ttl_ms: int) -> int:
    """Return how long a waiter may block on the server.

    Its lease counts from the moment when the client sent its acquire, so most of the ttl must still be left. And a long
    wait must not hold a connection.
    """
    return min(ttl_ms * NS_PER_MS // 3, _POP_MAX_NS)


class RedisBlockingTransport(RedisTransport[ConnectionPool], BlockingTransport):
    """The transport for threads."""

    def __init__(self, engine: RedisEngine, *, owns: bool) -> None:
        super().__init__(engine)
        self._owns = owns
        self._closed = False
        self._blocked_connections: set[RedisConnection] = set()
        self._popping: set[str] = set()  # tokens of waiters that block, or are about to
        self._listening: set[str] = set()  # tokens of waiters that listen, because they have blocked or never may

    def apply(self, command: Command, until_ns: int | None = None) -> Answer | Awaitable[Answer]:
        """Answer one command. Remember no wake-ups for a waiter that will block on the server."""
        pops = False
        if type(command) in WAITABLE:
            acquire: Any = command
            pops = acquire.wait and self._may_pop(acquire, until_ns)
            if not pops:
                if acquire.wait:
                    self._listening.add(acquire.token)  # the server will publish this waiter's wake-up
                return self._acquire(acquire, until_ns)
        try:
            return self._send(command, until_ns, pops=pops)
        except Unavailable as error:
            return self._follow_one(command, error, until_ns, pops=pops)

    async def answer(self, command: Command, until_ns: int | None) -> Answer:
        try:
            return self._send(command, until_ns)
        except Unavailable as error:
            return await self._follow_one(command, error, until_ns)

    def _send(self, command: Command, until_ns: int | None, *, pops: bool = False) -> Answer:
        """Send one command and return its answer, in one direct exchange without redirects."""
        engine = self._engine
        limit_s = engine.wire_s if until_ns is None else bounded(engine.wire_s, until_ns)
        if type(command) is ChangePool:
            limit_s += extra_s(command)
        pool = self._only or self._connections_of(command)
        connection = pool.take(limit_s)
        reply = connection.send(engine.packer.pack(command, pops=pops), limit_s)
        if type(reply) is hiredis.ReplyError and unknown_script(reply):
            reply = connection.send(engine.packer.pack(command, with_text=True, pops=pops), limit_s)
        pool.give_back(connection)
        if type(reply) is hiredis.ReplyError:
            raise self._refused(pool.node.url, command, reply)
        return answered(type(command), reply)

    def _new_connections(self, node: Node) -> ConnectionPool:
        return ConnectionPool(node, self._engine.known_servers.identity_of(node), retired=self._closed)

    async def _send_all(self, connections: ConnectionPool, commands: bytes, count: int, limit_s: float) -> list[Any]:
        connection = connections.take(limit_s)
        replies = connection.exchange(commands, count, limit_s)
        connections.give_back(connection)
        return replies

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        return call()

    def _pool_of(self, connections: ConnectionPool) -> ConnectionPool:
        return connections

    async def ensure_connected(self, until_ns: int) -> None:
        only, pools = self._engine.topology.only, list(self._connections.values())
        if only is not None:
            pools = [self.connections_at(only)]
        for before, pool in enumerate(pools):
            if not pool.failing:  # the next command to a failing server finds out whether it is back
                try:
                    pool.give_back(pool.take(self._limit_s(until_ns) / (len(pools) - before)))
                except Unavailable:
                    self._mark_failing(pool)
                    raise

    def _may_pop(self, command: AcquireCommand, until_ns: int | None) -> bool:
        """Return whether this waiter will block on the server first: once, briefly, and one of at most 16."""
        if isinstance(command, Receive) or command.token in self._listening or len(self._popping) >= _POPPING_MAX:
            return False
        return until_ns is None or until_ns - SYSTEM.now_ns() >= _pop_ns(command.ttl_ms)

    async def wait(self, command: AcquireCommand, until_ns: int) -> Answer | None:
        if isinstance(command, Receive) or command.token in self._listening:
            return await super().wait(command, until_ns)
        may_pop = self._may_pop(command, until_ns)
        self._listening.add(command.token)
        self._popping.add(command.token)
        try:
            # Count after adding: otherwise two waiters that come at once would both take the last place.
            if not may_pop or len(self._popping) > _POPPING_MAX:
                return None  # the caller resends the command, as a waiter that listens
            return self._pop(command, _pop_ns(command.ttl_ms) / NS)
        finally:
            self._popping.discard(command.token)

    def _pop(self, command: AcquireCommand, seconds: float) -> Answer | None:
        """Block until the lease is offered, and confirm the offer in the same exchange."""
        packer = self._engine.packer
        pool = self._only or self._connections_of(command)
        # After the acquire behind the blocking command, this waiter listens: remember a wake-up that follows right
        # away.
        self._listener.waiter_registry.expect(command.token)
        try:
            connection = pool.take(seconds)
            self._blocked_connections.add(connection)
            try:
                commands = packer.pack_pop(command, seconds) + packer.pack(command)
                reply = connection.exchange(commands, 2, seconds + _TICK_S)[1]
            finally:
                self._blocked_connections.discard(connection)
        except Unavailable:
            self._mark_failing(pool)
            raise
        pool.give_back(connection)
        if isinstance(reply, hiredis.ReplyError):
            return None  # the caller resends the command, and gets the whole error
        answer = answered(type(command), reply)
        if not isinstance(answer, Busy):
            self.forget(command.token)
        return answer

    def forget(self, token: str) -> None:
        super().forget(token)
        self._listening.discard(token)

    def wake_all(self) -> None:
        self._unblock()
        super().wake_all()

    async def close(self) -> None:
        self._closed = self._owns
        self._retire_all()
        if self._owns:
            self._engine.close()

    def _retire_all(self) -> None:
        self._only = None
        with suppress(KeyError):  # as in `close_idle`
            while True:
                retire(self._connections.popitem()[1])

    def retire_unused(self) -> None:
        super().retire_unused()
        if self._engine.topology.only is not None:
            self._unblock()  # the server on which the waiters block will not wake them any more

    def _unblock(self) -> None:
        for connection in self._blocked_connections.copy():
            connection.cut()

    def forked(self) -> None:
        """Close the child's copies of the connections without sending: the connections belong to the parent."""
        self._retire_all()
        while self._blocked_connections:
            self._blocked_connections.pop().close()
        self._popping.clear()
        self._listening.clear()
