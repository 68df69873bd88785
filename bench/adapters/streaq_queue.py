"""streaq: its worker, until the queue is empty."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

from streaq import Worker

from bench.adapters.message_counter import MessageCounter


class Streaq:
    def __init__(self, url: str, concurrency: int) -> None:
        self._url, self._concurrency = url, concurrency

    def _worker(self, handled: MessageCounter):
        worker = Worker(
            redis_url=self._url, queue_name=f"bench-{os.getpid()}", concurrency=self._concurrency, handle_signals=False
        )

        @worker.task(name="nothing", ttl=0)
        async def nothing(number: int) -> None:  # noqa: ARG001
            handled.one()

        return worker, nothing

    async def publish(self, count: int) -> None:
        worker, nothing = self._worker(MessageCounter())
        async with worker:
            for first in range(0, count, 100):
                await worker.enqueue_many([nothing.enqueue(n) for n in range(first, min(count, first + 100))])

    async def drain(self, count: int) -> float:
        handled = MessageCounter()
        handled.expect(count)
        worker, _ = self._worker(handled)
        worker.burst = True
        working = asyncio.ensure_future(worker.run_async())
        seconds = await handled.seconds()
        await asyncio.wait([working], timeout=10)
        return seconds


@asynccontextmanager
async def aio(url: str, ttl: float, concurrency: int):  # noqa: ARG001
    yield Streaq(url, concurrency)
