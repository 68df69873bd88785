"""Holdfast's queues, with all promises on: a worker of holdfast.aio whose handler does nothing; a blocking consumer."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager, contextmanager

import holdfast.aio


class Ours:
    def __init__(self, client, concurrency: int, queue: str, **settings: float) -> None:
        self._queue = client.queue(queue or f"bench-{os.getpid()}", **settings)
        self._concurrency = concurrency
        self._kept = None

    async def publish(self, count: int) -> None:
        await self._queue.publish_many(range(count))

    async def drain(self, count: int) -> float:  # noqa: ARG002 - it drains the queue
        async def handle(message) -> None:
            pass

        began = time.monotonic()
        await self._queue.worker(handle, concurrency=self._concurrency).run_until_idle()
        return time.monotonic() - began

    async def serve(self, seconds: float) -> list[float]:
        """Work for so long; return the age of each message at its handler. The body is the time of publishing."""
        ages = []

        async def handle(message) -> None:
            ages.append(time.monotonic() - message.body)

        worker = self._queue.worker(handle, concurrency=self._concurrency)
        asyncio.get_running_loop().call_later(seconds, worker.stop)
        await worker.run()
        return ages

    async def keep(self, count: int) -> int:
        """Receive so many messages, and ack none of them."""
        self._kept = self._queue.consumer(prefetch=count)
        await self._kept.__aenter__()
        found = 0
        while found < count:
            found += len(await self._kept.receive(count - found, timeout=60))
        return found

    async def handle(self, count: int) -> tuple[float, int]:
        """Work until so many are done; return when the last one was, and how many attempts were counted before."""
        attempts, done = 0, 0.0
        left = count

        async def handle(message) -> None:
            nonlocal attempts, done, left
            attempts += message.attempt - 1
            done, left = time.monotonic(), left - 1
            if not left:
                worker.stop()

        worker = self._queue.worker(handle, concurrency=self._concurrency)
        await worker.run()
        return done, attempts


@asynccontextmanager
async def aio(url: str, ttl: float, concurrency: int, queue: str = "", dead_after: tuple[float, ...] = ()):  # noqa: ARG001 - a queue has its own
    async with await holdfast.aio.connect(url) as client:
        yield Ours(client, concurrency, queue, **dict(zip(("ttl", "grace"), dead_after, strict=False)))


@contextmanager
def blocking(url: str, ttl: float):  # noqa: ARG001 - a queue has its own
    """Yield a function that publishes one message, receives it, and returns its ack."""
    with holdfast.connect(url) as client:
        queue = client.queue(f"bench-{os.getpid()}")
        with queue.consumer() as consumer:

            def received(body: str):
                queue.publish(body)
                (message,) = consumer.receive(1, timeout=60)
                return message.ack

            yield received
