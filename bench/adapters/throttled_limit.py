"""throttled-py: its algorithms by name."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager

import throttled
import throttled.asyncio


@contextmanager
def blocking(url: str, ttl: float, count: int, using: str):  # noqa: ARG001 - the quota has the time
    store = throttled.RedisStore(server=url)
    limiter = throttled.Throttled(using=using, quota=throttled.per_sec(count), store=store)
    yield lambda key: not limiter.limit(key).limited


@asynccontextmanager
async def aio(url: str, ttl: float, count: int, using: str):  # noqa: ARG001
    store = throttled.asyncio.RedisStore(server=url)
    limiter = throttled.asyncio.Throttled(using=using, quota=throttled.asyncio.per_sec(count), store=store)

    async def decide(key: str):
        return not (await limiter.limit(key)).limited

    yield decide
