"""Holdfast, both faces, with all features on: fence, keeper, loss detection, retries."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager

import holdfast


@contextmanager
def blocking(url: str, ttl: float):
    with holdfast.connect(url) as hf:
        yield lambda name: hf.lock(name, ttl=ttl).acquire().release


@asynccontextmanager
async def aio(url: str, ttl: float, fence_memory: float = 60):
    from holdfast.aio import connect  # noqa: PLC0415 - a blocking candidate does not pay for asyncio

    async with await connect(url, fence_memory=fence_memory) as hf:

        async def acquire(name: str):
            lease = await hf.lock(name, ttl=ttl).acquire()
            return lease.release

        yield acquire
