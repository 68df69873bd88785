"""A readiness check for load balancers: an application to mount at `/ready`."""

from __future__ import annotations

import asyncio

from holdfast.clock import Seconds, seconds_of
from holdfast.contrib.asgi.connection import Connection, Middleware, Receive, Scope, Send, answer
from holdfast.errors import HoldfastError

_NAME = "holdfast/readiness"


class Readiness(Middleware):
    """Answers 200 while the engine of `connection` answers within `timeout` seconds, otherwise 503."""

    def __init__(self, connection: Connection, timeout: Seconds = 1.0) -> None:
        super().__init__(_nothing, connection)
        self._timeout = seconds_of(timeout, setting="timeout")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                hf = await self._connection()
                await hf.show(_NAME)
        except (HoldfastError, TimeoutError) as error:
            reason = getattr(error, "reason", "stalled")
            not_ready = {"status": "not ready", "reason": reason}
            await answer(scope, receive, send, 503, not_ready, {"retry-after": "1"})
        else:
            await answer(scope, receive, send, 200, {"status": "ready"})


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the lifespan events; there is no application inside."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
