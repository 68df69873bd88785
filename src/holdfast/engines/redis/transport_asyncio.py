"""The asyncio transport for Redis: one connection per node that all tasks share, opened when it is first needed."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import hiredis

from holdfast.clock import SYSTEM
from holdfast.commands import POSITIONED, WAITABLE, ChangePool
from holdfast.engines.redis.connection_asyncio import MultiplexedConnection, run_in_thread
from holdfast.engines.redis.pool import extra_s
from holdfast.engines.redis.replies import answered
from holdfast.engines.redis.routing import NodeConnections, bounded, retire, unknown_script
from holdfast.engines.redis.server_info import GREETING
from holdfast.engines.redis.transport_base import RedisTransport
from holdfast.engines.transport_asyncio import AsyncioTransport
from holdfast.errors import MOVING, ReplyLost, Unavailable, UnavailableReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.commands import Answer, Command
    from holdfast.engines.redis.engine import RedisEngine
    from holdfast.engines.redis.server_identity import ServerIdentity
    from holdfast.engines.redis.topology import Node
    from holdfast.engines.redis.transport_blocking import ConnectionPool, RedisBlockingTransport

T = TypeVar("T")


class SharedConnection(NodeConnections):
    """The one connection of a transport to one node."""

    def __init__(self, node: Node, identity: ServerIdentity) -> None:
        super().__init__(node, identity)
        self.open_connection: MultiplexedConnection | None = None
        self._opening: asyncio.Task[MultiplexedConnection] | None = None

    async def open(self, limit_s: float) -> MultiplexedConnection:
        """Open the connection. A cancelled caller does not cancel the opening for the others.

        A caller whose limit is shorter than an exchange may take waits no longer than its limit. The opening itself may
        take as long as its connect timeout.
        """
        if self.retired:
            raise Unavailable("redis", MOVING, f"{self.node.url} is no longer used")
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._greeted())
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        done, _ = await asyncio.wait((opening,), timeout=limit_s if limit_s < self.node.wire_s else None)
        if not done:
            late = ReplyLost(
                "redis", UnavailableReason.REPLY_LOST, f"{self.node.url}: no connection within {limit_s:.3f} s"
            )
            raise self.identity.greeting_lost(late)
        return opening.result()

    async def _greeted(self) -> MultiplexedConnection:
        """Open a connection, and learn which run of which server it leads to."""
        connection, sent_ns = await MultiplexedConnection.open(self.node), SYSTEM.now_ns()
        try:
            reply = await connection.send(GREETING, self.node.wire_s)
        except ReplyLost as error:
            raise self.identity.greeting_lost(error) from error
        except BaseException:
            connection.close()
            raise
        self.identity.record_greeting(reply, sent_ns, SYSTEM.now_ns())
        return connection

    def _opened(self, opening: asyncio.Task[MultiplexedConnection]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self.open_connection = opening.result()
            if self.retired:
                self.close_idle()

    def close_idle(self) -> None:
        if self.open_connection is not None:
            self.open_connection.close()

    async def close(self) -> None:
        if self._opening is not None:
            # No task waits for the opening any more: the tasks that did were cancelled.
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        self.close_idle()


class RedisAsyncioTransport(RedisTransport[SharedConnection], AsyncioTransport):
    """The transport for tasks."""

    def __init__(self, engine: RedisEngine) -> None:
        super().__init__(engine)
        self._confirming: RedisBlockingTransport | None = None

    async def apply(self, command: Command, until_ns: int | None = None) -> Answer:
        """Answer one command, in one stack frame: a task that wakes up pays for each frame."""
        self.check_loop()
        waiter_registry, answer = self._engine.waiter_registry, None
        acquires = type(command) in WAITABLE
        if acquires and command.wait:  # type: ignore[union-attr]
            waiter_registry.expect(command.token)  # type: ignore[union-attr]
        try:
            try:
                engine = self._engine
                limit_s = engine.wire_s if until_ns is None else bounded(engine.wire_s, until_ns)
                if type(command) is ChangePool:
                    limit_s += extra_s(command)
                shared = self._only or self._connections_of(command)
                connection = shared.open_connection
                if connection is None or connection.closed:
                    connection = await shared.open(limit_s)
                reply = await connection.send(engine.packer.pack(command), limit_s)
                if type(reply) is hiredis.ReplyError:
                    reply = await self._send_with_text(shared, connection, command, reply, limit_s)
                answer = answered(type(command), reply)
            except Unavailable as error:
                answer = await self._follow_one(command, error, until_ns)
            return answer
        finally:
            if acquires and not (type(answer) in POSITIONED and answer.position is not None):  # type: ignore[union-attr]
                waiter_registry.forget(command.token)  # type: ignore[union-attr]

    async def _send_with_text(
        self,
        shared: SharedConnection,
        connection: MultiplexedConnection,
        command: Command,
        reply: hiredis.ReplyError,
        limit_s: float,
    ) -> Any:
        """Send the text of the script to a server that did not know it; raise any other error."""
        if unknown_script(reply):
            reply = await connection.send(self._engine.packer.pack(command, with_text=True), limit_s)
        if type(reply) is hiredis.ReplyError:
            raise self._refused(shared.node.url, command, reply)
        return reply

    def _new_connections(self, node: Node) -> SharedConnection:
        return SharedConnection(node, self._engine.known_servers.identity_of(node))

    async def _send_all(self, connections: SharedConnection, commands: bytes, count: int, limit_s: float) -> list[Any]:
        self.check_loop()
        connection = connections.open_connection
        if connection is None or connection.closed:
            connection = await connections.open(limit_s)
        return await connection.send_all(commands, count, limit_s)

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        return await run_in_thread(call)

    def _pool_of(self, connections: SharedConnection) -> ConnectionPool:
        """Return a separate pool: on the shared connection, a blocking command would hold up all other tasks."""
        if self._confirming is None:
            self._confirming = self._engine.transport(owns=False)
        return self._confirming.connections_at(connections.node)

    def topology_changed(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.retire_unused)
        except RuntimeError:
            return  # the loop is closed, and its connections with it

    async def listen(self, token: str) -> bool:
        if self._engine.listening:
            return False
        return await run_in_thread(partial(self._engine.listen, token))

    async def close(self) -> None:
        self._only = None
        while self._connections:
            shared = self._connections.popitem()[1]
            retire(shared)
            await shared.close()
        if self._confirming is not None:
            await self._confirming.close()
        await run_in_thread(self._engine.close)
