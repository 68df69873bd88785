"""The asyncio form over Redis: one shared connection for all tasks, opened by whoever needs it first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.engines.loop import LoopForm
from holdfast.engines.redis.blocking import AT_ONCE, answers, bounded, unknown_script
from holdfast.engines.redis.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.commands import Answer, Command
    from holdfast.engines.redis.engine import RedisEngine


class RedisAsyncio(LoopForm):
    """What tasks use."""

    def __init__(self, engine: RedisEngine) -> None:
        super().__init__(engine)
        self._engine = engine
        self._stream: Stream | None = None
        self._opening: asyncio.Task[Stream] | None = None

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Answer]:
        if len(commands) <= AT_ONCE:
            return await self._exchange(commands, until_ns)
        told: list[Answer] = []
        for start in range(0, len(commands), AT_ONCE):
            told += await self._exchange(commands[start : start + AT_ONCE], until_ns)
        return told

    async def _exchange(self, commands: Sequence[Command], until_ns: int | None) -> list[Answer]:
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
        return answers(engine.dialler.url, replies)

    async def _open(self) -> Stream:
        """The one connection. A caller that is cancelled meanwhile does not take it from the others."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(Stream.open(self._engine.dialler))
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, opening: asyncio.Task[Stream]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._stream = opening.result()

    async def listen(self, token: str) -> bool:
        # Subscribing blocks for a moment, which a loop must not.
        return await self._loop.run_in_executor(None, self._engine.listen, token)

    async def close(self) -> None:
        if self._opening is not None:
            # Nobody waits for it any more: whoever did was cancelled.
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        if self._stream is not None:
            self._stream.close()
        await self._loop.run_in_executor(None, self._engine.close)
