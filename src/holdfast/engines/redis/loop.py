"""The asyncio form over Redis: one shared connection for all tasks, opened by whoever needs it first."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import hiredis

from holdfast.clock import SYSTEM
from holdfast.engines.loop import LoopForm
from holdfast.engines.redis.blocking import AT_ONCE, answers, bounded, unknown_script
from holdfast.engines.redis.dial import refused
from holdfast.engines.redis.facts import GREETING, QUESTIONS
from holdfast.engines.redis.scripts import answered
from holdfast.engines.redis.stream import Stream
from holdfast.errors import ReplyLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.commands import Answer, Command
    from holdfast.engines import Promise, Reply
    from holdfast.engines.redis.blocking import RedisBlocking
    from holdfast.engines.redis.engine import RedisEngine

T = TypeVar("T")


class RedisAsyncio(LoopForm):
    """What tasks use."""

    def __init__(self, engine: RedisEngine) -> None:
        super().__init__(engine)
        self._engine = engine
        self._stream: Stream | None = None
        self._opening: asyncio.Task[Stream] | None = None
        self._apart: RedisBlocking | None = None

    async def answer(self, command: Command, until_ns: int | None) -> Answer:
        engine = self._engine
        limit_s = engine.dialler.wire_s if until_ns is None else bounded(engine.dialler.wire_s, until_ns)
        stream = self._stream
        if stream is None or stream.closed:
            stream = await self._open()
        reply = (await stream.ask(engine.packer.pack(command), 1, limit_s))[0]
        if type(reply) is hiredis.ReplyError and unknown_script(reply):
            reply = (await stream.ask(engine.packer.pack(command, whole=True), 1, limit_s))[0]
        if type(reply) is hiredis.ReplyError:
            raise refused(engine.dialler.url, reply)
        return answered(type(command), reply)

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Reply]:
        if len(commands) <= AT_ONCE:
            return await self._exchange(commands, until_ns)
        told: list[Reply] = []
        for start in range(0, len(commands), AT_ONCE):
            try:
                told += await self._exchange(commands[start : start + AT_ONCE], until_ns)
            except Unavailable as error:
                return told + [error] * (len(commands) - len(told))  # as in the blocking form
        return told

    async def _exchange(self, commands: Sequence[Command], until_ns: int | None) -> list[Reply]:
        engine = self._engine
        pack, limit_s = engine.packer.pack, engine.dialler.wire_s
        if until_ns is not None:
            limit_s = bounded(limit_s, until_ns)
        stream = self._stream
        if stream is None or stream.closed:
            stream = await self._open()
        replies = await stream.ask(b"".join([pack(command) for command in commands]), len(commands), limit_s)
        for at, reply in enumerate(replies):
            if unknown_script(reply):
                replies[at] = (await stream.ask(pack(commands[at], whole=True), 1, limit_s))[0]
        return answers(engine.dialler.url, commands, replies)

    async def _open(self) -> Stream:
        """The one connection. A caller that is cancelled meanwhile does not take it from the others."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._greeted())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    async def _greeted(self) -> Stream:
        """A connection that has told which run of the server it leads to."""
        engine = self._engine
        stream, asked_ns = await Stream.open(engine.dialler), SYSTEM.now_ns()
        try:
            replies = await stream.ask(GREETING, 1, engine.dialler.wire_s)
        except ReplyLost as error:
            raise Unavailable("redis", "unreachable", error.detail) from error
        except BaseException:
            stream.close()
            raise
        engine.witness.greeted(replies[0], asked_ns, SYSTEM.now_ns())
        return stream

    async def confirm(self, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        """On a connection of its own, and a thread of its own: what waits would hold up all other tasks."""
        if self._apart is None:
            self._apart = self._engine.form(owns=False)
        return await self._aside(partial(self._apart.confirmed, commands, until_ns))

    async def promise(self, until_ns: int | None = None) -> Promise:
        limit_s = self._engine.dialler.wire_s
        if until_ns is not None:
            limit_s = bounded(limit_s, until_ns)
        stream = self._stream
        if stream is None or stream.closed:
            stream = await self._open()
        asked_ns = SYSTEM.now_ns()
        replies = await stream.ask(b"".join(QUESTIONS), len(QUESTIONS), limit_s)
        return self._engine.promise(replies, asked_ns, SYSTEM.now_ns())

    def _opened(self, opening: asyncio.Task[Stream]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._stream = opening.result()

    async def listen(self, token: str) -> bool:
        if self._engine.listening:
            return False
        return await self._aside(partial(self._engine.listen, token))

    async def close(self) -> None:
        if self._opening is not None:
            # Nobody waits for it any more: whoever did was cancelled.
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        if self._stream is not None:
            self._stream.close()
        if self._apart is not None:
            await self._apart.close()
        await self._aside(self._engine.close)

    async def _aside(self, call: Callable[[], T]) -> T:
        """Something that blocks for a moment, on a thread of its own: the loop's own threads may all be taken."""
        worker, done = ThreadPoolExecutor(1, thread_name_prefix="holdfast-aside"), False
        try:
            result = await self._loop.run_in_executor(worker, call)
            done = True
            return result
        finally:
            worker.shutdown(wait=done)  # a cancelled caller does not wait for what it no longer wants
