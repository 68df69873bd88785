"""arq: its worker, until the queue is empty."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

from bench.adapters.message_counter import MessageCounter


class Arq:
    def __init__(self, pool, concurrency: int) -> None:
        self._pool, self._concurrency, self._handled = pool, concurrency, MessageCounter()

    async def publish(self, count: int) -> None:
        for number in range(count):
            await self._pool.enqueue_job("nothing", number)

    async def drain(self, count: int) -> float:
        self._handled.expect(count)

        async def nothing(ctx, number: int) -> None:  # noqa: ARG001
            self._handled.one()

        worker = Worker(
            functions=[func(nothing, name="nothing")],
            redis_pool=self._pool,
            queue_name=self._pool.default_queue_name,
            keep_result=0,
            max_jobs=self._concurrency,
            burst=True,
            handle_signals=False,
            poll_delay=0.01,
        )
        working = asyncio.ensure_future(worker.main())
        seconds = await self._handled.seconds()
        await working
        return seconds


@asynccontextmanager
async def aio(url: str, ttl: float, concurrency: int):  # noqa: ARG001
    logging.disable(logging.INFO)
    pool = await create_pool(RedisSettings.from_dsn(url), default_queue_name=f"bench-{os.getpid()}")
    yield Arq(pool, concurrency)
    await pool.aclose()
