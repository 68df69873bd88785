"""Holdfast's rate limits, both faces: exact sliding windows, or GCRA."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager

import holdfast


@contextmanager
def blocking(url: str, ttl: float, rate: str, method: str = "window"):  # noqa: ARG001 - the rate has the time
    with holdfast.connect(url) as hf:
        yield hf.limit(rate, method=method, on_unavailable="deny").hit


@asynccontextmanager
async def aio(url: str, ttl: float, rate: str, method: str = "window"):  # noqa: ARG001
    from holdfast.aio import connect  # noqa: PLC0415 - a blocking candidate does not pay for asyncio

    async with await connect(url) as hf:
        yield hf.limit(rate, method=method, on_unavailable="deny").hit
