"""redis-py's Lock, blocking and asyncio. No fence, no renewal; waiters poll ten times a second."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager

import redis
import redis.asyncio
from redis.asyncio.lock import Lock as AsyncioLock
from redis.lock import Lock


@contextmanager
def blocking(url: str, ttl: float):
    with redis.Redis.from_url(url) as client:

        def acquire(name: str):
            lock = Lock(client, name, timeout=ttl)
            assert lock.acquire()
            return lock.release

        yield acquire


@asynccontextmanager
async def aio(url: str, ttl: float):
    async with redis.asyncio.Redis.from_url(url) as client:

        async def acquire(name: str):
            lock = AsyncioLock(client, name, timeout=ttl)
            assert await lock.acquire()
            return lock.release

        yield acquire
