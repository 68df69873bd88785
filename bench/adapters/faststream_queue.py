"""FastStream: one message at a time, from a stream with a consumer group."""

from __future__ import annotations

import logging
import os
from contextlib import asynccontextmanager

from faststream.redis import RedisBroker, StreamSub

from bench.adapters.message_counter import MessageCounter


class FastStream:
    def __init__(self, url: str) -> None:
        self._url, self._name = url, f"bench-{os.getpid()}"

    def _broker(self) -> RedisBroker:
        return RedisBroker(self._url, logger=None, log_level=logging.CRITICAL)

    async def publish(self, count: int) -> None:
        async with self._broker() as broker:
            connection = await broker.connect()
            if not await connection.exists(self._name):
                await connection.xgroup_create(self._name, "g", id="0", mkstream=True)
            for number in range(count):
                await broker.publish(number, stream=self._name)

    async def drain(self, count: int) -> float:
        handled, broker = MessageCounter(), self._broker()
        handled.expect(count)

        @broker.subscriber(stream=StreamSub(self._name, group="g", consumer="c"))
        async def nothing(number: int) -> None:  # noqa: ARG001
            handled.one()

        await broker.start()
        seconds = await handled.seconds()
        await broker.stop()
        return seconds


@asynccontextmanager
async def aio(url: str, ttl: float):  # noqa: ARG001
    yield FastStream(url)
