"""The floor of a rate limit: one INCR, packed before. It decides nothing, and its counts never expire."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from functools import cache

from bench.adapters.floor import Link, Shared, _connected, packed


@contextmanager
def blocking(url: str, ttl: float):  # noqa: ARG001 - there is no window
    link = Link(url)
    of, ask = cache(lambda key: packed("INCR", key)), link.ask
    yield lambda key: ask(of(key)) > 0
    link.close()


@asynccontextmanager
async def aio(url: str, ttl: float):  # noqa: ARG001
    shared = Shared()
    loop, link = asyncio.get_running_loop(), _connected(url, blocking=False)
    connect = loop.create_unix_connection if link.family == socket.AF_UNIX else loop.create_connection
    await connect(lambda: shared, sock=link)
    of = cache(lambda key: packed("INCR", key))

    async def decide(key: str):
        return await shared.ask(of(key)) > 0

    yield decide
    shared.transport.close()
