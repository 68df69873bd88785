"""pottery's Redlock on one server, blocking and asyncio. No fence, no renewal."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager

import redis
import redis.asyncio
from pottery import AIORedlock, Redlock


@contextmanager
def blocking(url: str, ttl: float):
    with redis.Redis.from_url(url) as client:

        def acquire(name: str):
            lock = Redlock(key=name, masters={client}, auto_release_time=ttl)
            assert lock.acquire()
            return lock.release

        yield acquire


@asynccontextmanager
async def aio(url: str, ttl: float):
    async with redis.asyncio.Redis.from_url(url) as client:

        async def acquire(name: str):
            lock = AIORedlock(key=name, masters={client}, auto_release_time=ttl)
            assert await lock.acquire()
            return lock.release

        yield acquire
