"""limits: its strategies by name. `moving-window` keeps every hit; the others keep counters."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager

import limits
import limits.aio
import limits.storage
import limits.strategies


@contextmanager
def blocking(url: str, ttl: float, rate: str, strategy: str):  # noqa: ARG001 - the rate has the time
    limiter = limits.strategies.STRATEGIES[strategy](limits.storage.storage_from_string(url))
    item = limits.parse(rate)
    yield lambda key: limiter.hit(item, key)


@asynccontextmanager
async def aio(url: str, ttl: float, rate: str, strategy: str):  # noqa: ARG001
    from limits.aio.strategies import STRATEGIES  # noqa: PLC0415

    limiter = STRATEGIES[strategy](limits.storage.storage_from_string(f"async+{url}", implementation="redispy"))
    item = limits.parse(rate)

    async def decide(key: str):
        return await limiter.hit(item, key)

    yield decide
