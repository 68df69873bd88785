"""The asyncio form over Redis: one shared connection for all tasks, opened by whoever needs it first."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import hiredis

from holdfast.engines.loop import LoopForm
from holdfast.engines.redis.aside import aside
from holdfast.engines.redis.routed import Lane, Routed, bounded, leave, unknown_script
from holdfast.engines.redis.scripts import answered
from holdfast.engines.redis.stream import Stream
from holdfast.errors import SETTLING, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.commands import Answer, Command
    from holdfast.engines.redis.topology import Node


class Shared(Lane):
    """The one connection of a form to one node."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.stream: Stream | None = None
        self._opening: asyncio.Task[Stream] | None = None

    async def open(self) -> Stream:
        """Open it. A caller that is cancelled meanwhile does not take it from the others."""
        if self.left:
            raise Unavailable("redis", SETTLING, f"{self.node.url} has just been left")
        if self._opening is None:
            self._opening = asyncio.ensure_future(Stream.open(self.node))
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, opening: asyncio.Task[Stream]) -> None:
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


class RedisAsyncio(Routed[Shared], LoopForm):
    """What tasks use."""

    async def answer(self, command: Command, until_ns: int | None) -> Answer:
        try:
            engine = self._engine
            limit_s = engine.wire_s if until_ns is None else bounded(engine.wire_s, until_ns)
            lane = self._lane or self._lane_of(command.name)
            stream = lane.stream
            if stream is None or stream.closed:
                stream = await lane.open()
            reply = await stream.ask(engine.packer.pack(command), limit_s)
            if type(reply) is hiredis.ReplyError and unknown_script(reply):
                reply = await stream.ask(engine.packer.pack(command, whole=True), limit_s)
            if type(reply) is hiredis.ReplyError:
                raise self._refused(lane.node.url, reply)
            return answered(type(command), reply)
        except Unavailable as trouble:
            return await self._follow_one(command, trouble, until_ns)

    def _new_lane(self, node: Node) -> Shared:
        return Shared(node)

    async def _tell(self, lane: Shared, commands: bytes, count: int, limit_s: float) -> list[Any]:
        stream = lane.stream
        if stream is None or stream.closed:
            stream = await lane.open()
        return await stream.ask_all(commands, count, limit_s)

    async def _aside(self, call: Callable[[], object]) -> None:
        await aside(call)

    def moved(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.tidy)
        except RuntimeError:
            return  # the loop is closed, and with it all that it had open

    async def listen(self, token: str) -> bool:
        if self._engine.listening:
            return False
        return await aside(partial(self._engine.listen, token))

    async def close(self) -> None:
        self._lane = None
        while self._lanes:
            lane = self._lanes.popitem()[1]
            leave(lane)
            await lane.close()
        await aside(self._engine.close)
