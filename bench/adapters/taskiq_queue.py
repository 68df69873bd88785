"""taskiq-redis: its broker on streams, and its receiver."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

from taskiq.receiver import Receiver
from taskiq_redis import RedisStreamBroker

from bench.adapters.message_counter import MessageCounter


class Taskiq:
    def __init__(self, broker, concurrency: int) -> None:
        self._broker, self._concurrency, self._handled = broker, concurrency, MessageCounter()

        @broker.task(task_name="nothing")
        async def nothing(number: int) -> None:  # noqa: ARG001 - its body
            self._handled.one()

        self._task = nothing

    async def publish(self, count: int) -> None:
        for number in range(count):
            await self._task.kiq(number)

    async def drain(self, count: int) -> float:
        self._handled.expect(count)
        receiver, over = Receiver(self._broker, max_async_tasks=self._concurrency, run_startup=False), asyncio.Event()
        listening = asyncio.ensure_future(receiver.listen(over))
        seconds = await self._handled.seconds()
        over.set()
        await asyncio.wait([listening], timeout=3)
        listening.cancel()
        return seconds


@asynccontextmanager
async def aio(url: str, ttl: float, concurrency: int):  # noqa: ARG001
    broker = RedisStreamBroker(url, queue_name=f"bench-{os.getpid()}", consumer_id="0")
    broker.is_worker_process = True
    await broker.startup()
    yield Taskiq(broker, concurrency)
    await broker.shutdown()
