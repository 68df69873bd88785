"""pyrate-limiter: a log of all hits in a sorted set."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager

import redis
import redis.asyncio
from pyrate_limiter import Duration, Limiter, Rate, RedisBucket


@contextmanager
def blocking(url: str, ttl: float, count: int):  # noqa: ARG001 - the rate has the time
    with redis.Redis.from_url(url) as client:
        limiter = Limiter(RedisBucket.init([Rate(count, Duration.SECOND)], client, "bench"))
        yield lambda key: limiter.try_acquire(key, blocking=False)


@asynccontextmanager
async def aio(url: str, ttl: float, count: int):  # noqa: ARG001
    async with redis.asyncio.Redis.from_url(url) as client:
        limiter = Limiter(await RedisBucket.init([Rate(count, Duration.SECOND)], client, "bench"))

        async def decide(key: str):
            return await limiter.try_acquire_async(key, blocking=False)

        yield decide
