"""saq: its worker on lists."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

from saq import Queue, Worker

from bench.adapters.message_counter import MessageCounter


class Saq:
    def __init__(self, queue, concurrency: int) -> None:
        self._queue, self._concurrency, self._handled = queue, concurrency, MessageCounter()

    async def publish(self, count: int) -> None:
        for number in range(count):
            await self._queue.enqueue("nothing", number=number)

    async def drain(self, count: int) -> float:
        self._handled.expect(count)

        async def nothing(ctx, *, number: int) -> None:  # noqa: ARG001
            self._handled.one()

        worker = Worker(self._queue, functions=[("nothing", nothing)], concurrency=self._concurrency)
        worker.SIGNALS = []
        working = asyncio.ensure_future(worker.start())
        seconds = await self._handled.seconds()
        await worker.stop()
        await asyncio.wait([working], timeout=10)
        return seconds


@asynccontextmanager
async def aio(url: str, ttl: float, concurrency: int):  # noqa: ARG001
    queue = Queue.from_url(url, name=f"bench-{os.getpid()}")
    await queue.connect()
    yield Saq(queue, concurrency)
    await queue.disconnect()
