"""The asyncio form over Redis: one shared connection for all tasks, opened by whoever needs it first."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import hiredis

from holdfast.clock import SYSTEM
from holdfast.commands import ASKING, POSITIONED, ChangePool
from holdfast.engines.redis.connection_asyncio import MultiplexedConnection, run_in_thread
from holdfast.engines.redis.pool import extra_s
from holdfast.engines.redis.replies import answered
from holdfast.engines.redis.routing import NodeConnections, bounded, leave, unknown_script
from holdfast.engines.redis.server_info import GREETING
from holdfast.engines.redis.transport_base import RedisTransport
from holdfast.engines.transport_asyncio import AsyncioTransport
from holdfast.errors import MOVING, ReplyLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.commands import Answer, Command
    from holdfast.engines.redis.engine import RedisEngine
    from holdfast.engines.redis.server_identity import ServerIdentity
    from holdfast.engines.redis.topology import Node
    from holdfast.engines.redis.transport_blocking import ConnectionPool, RedisBlockingTransport

T = TypeVar("T")


class SharedConnection(NodeConnections):
    """The one connection of a form to one node."""

    def __init__(self, node: Node, sight: ServerIdentity) -> None:
        super().__init__(node, sight)
        self.stream: MultiplexedConnection | None = None
        self._opening: asyncio.Task[MultiplexedConnection] | None = None

    async def open(self, limit_s: float) -> MultiplexedConnection:
        """Open it. A caller that leaves meanwhile does not take it from the others.

        Whoever has less time than an exchange may take does not wait for longer; to open it may take as long as it was
        given for that.
        """
        if self.left:
            raise Unavailable("redis", MOVING, f"{self.node.url} has just been left")
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._greeted())
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        done, _ = await asyncio.wait((opening,), timeout=limit_s if limit_s < self.node.wire_s else None)
        if not done:
            late = ReplyLost("redis", "reply lost", f"{self.node.url}: no connection within {limit_s:.3f} s")
            raise self.sight.unanswered(late)
        return opening.result()

    async def _greeted(self) -> MultiplexedConnection:
        """A connection that has told which run of which server it leads to."""
        stream, asked_ns = await MultiplexedConnection.open(self.node), SYSTEM.now_ns()
        try:
            reply = await stream.ask(GREETING, self.node.wire_s)
        except ReplyLost as error:
            raise self.sight.unanswered(error) from error
        except BaseException:
            stream.close()
            raise
        self.sight.greeted(reply, asked_ns, SYSTEM.now_ns())
        return stream

    def _opened(self, opening: asyncio.Task[MultiplexedConnection]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self.stream = opening.result()
            if self.left:
                self.drop()

    def drop(self) -> None:
        if self.stream is not None:
            self.stream.close()

    async def close(self) -> None:
        if self._opening is not None:
            # Nobody waits for it any more: whoever did was cancelled.
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        self.drop()


class RedisAsyncioTransport(RedisTransport[SharedConnection], AsyncioTransport):
    """What tasks use."""

    def __init__(self, engine: RedisEngine) -> None:
        super().__init__(engine)
        self._apart: RedisBlockingTransport | None = None

    async def apply(self, command: Command, until_ns: int | None = None) -> Answer:
        """What every form does, in one frame: a task wakes up through each of them."""
        self.check_loop()
        waiter_registry, answer = self._engine.waiter_registry, None
        acquires = type(command) in ASKING
        if acquires and command.wait:  # type: ignore[union-attr]
            waiter_registry.expect(command.token)  # type: ignore[union-attr]
        try:
            try:
                engine = self._engine
                limit_s = engine.wire_s if until_ns is None else bounded(engine.wire_s, until_ns)
                if type(command) is ChangePool:
                    limit_s += extra_s(command)
                lane = self._only or self._connections_of(command.name)
                stream = lane.stream
                if stream is None or stream.closed:
                    stream = await lane.open(limit_s)
                reply = await stream.ask(engine.packer.pack(command), limit_s)
                if type(reply) is hiredis.ReplyError:
                    reply = await self._once_more(lane, stream, command, reply, limit_s)
                answer = answered(type(command), reply)
            except Unavailable as trouble:
                answer = await self._follow_one(command, trouble, until_ns)
            return answer
        finally:
            if acquires and not (type(answer) in POSITIONED and answer.position is not None):  # type: ignore[union-attr]
                waiter_registry.forget(command.token)  # type: ignore[union-attr]

    async def _once_more(
        self,
        lane: SharedConnection,
        stream: MultiplexedConnection,
        command: Command,
        reply: hiredis.ReplyError,
        limit_s: float,
    ) -> Any:
        """A server that only did not know the script is sent its text."""
        if unknown_script(reply):
            reply = await stream.ask(self._engine.packer.pack(command, whole=True), limit_s)
        if type(reply) is hiredis.ReplyError:
            raise self._refused(lane.node.url, reply)
        return reply

    def _new_connections(self, node: Node) -> SharedConnection:
        return SharedConnection(node, self._engine.known_servers.of(node))

    async def _send_all(self, lane: SharedConnection, commands: bytes, count: int, limit_s: float) -> list[Any]:
        self.check_loop()
        stream = lane.stream
        if stream is None or stream.closed:
            stream = await lane.open(limit_s)
        return await stream.ask_all(commands, count, limit_s)

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        return await run_in_thread(call)

    def _links_of(self, lane: SharedConnection) -> ConnectionPool:
        """Connections of their own: what waits would hold up all other tasks."""
        if self._apart is None:
            self._apart = self._engine.transport(owns=False)
        return self._apart.connections_at(lane.node)

    def moved(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.tidy)
        except RuntimeError:
            return  # the loop is closed, and with it all that it had open

    async def listen(self, token: str) -> bool:
        if self._engine.listening:
            return False
        return await run_in_thread(partial(self._engine.listen, token))

    async def close(self) -> None:
        self._only = None
        while self._connections:
            lane = self._connections.popitem()[1]
            leave(lane)
            await lane.close()
        if self._apart is not None:
            await self._apart.close()
        await run_in_thread(self._engine.close)
