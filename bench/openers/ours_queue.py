"""holdfast.aio: a worker with a handler that does nothing. Everything that a queue promises is on."""

from __future__ import annotations

import os
import time
from contextlib import asynccontextmanager

from holdfast import aio as holdfast


class Ours:
    def __init__(self, client, concurrency: int) -> None:
        self._queue = client.queue(f"race-{os.getpid()}")
        self._concurrency = concurrency

    async def publish(self, count: int) -> None:
        await self._queue.publish_many(range(count))

    async def drain(self, count: int) -> float:  # noqa: ARG002 - as many as there are
        async def handle(message) -> None:
            pass

        began = time.monotonic()
        await self._queue.worker(handle, concurrency=self._concurrency).run_until_idle()
        return time.monotonic() - began


@asynccontextmanager
async def aio(url: str, ttl: float, concurrency: int):  # noqa: ARG001 - a queue has its own
    async with await holdfast.connect(url) as client:
        yield Ours(client, concurrency)
