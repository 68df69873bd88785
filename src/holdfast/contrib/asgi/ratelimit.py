"""Rate limiting of requests per key, across all servers: status 429, and headers with the remaining requests.

The headers are the common ones, `X-RateLimit-*` and `Retry-After`, and those of the IETF draft, `RateLimit` and
`RateLimit-Policy`. The middleware rounds seconds up, so that a client that waits this long is not refused again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.contrib.asgi.connection import App, Connection, Message, Middleware, Receive, Scope, Send, answer, header
from holdfast.rules.limit import rates

if TYPE_CHECKING:
    from holdfast.aio import RateLimiter
    from holdfast.core.limit.limit import Decision

TRY_AGAIN_LATER = 1013


def by_address(scope: Scope) -> str:
    """Return the client's address as the server reports it. Behind a proxy, configure the server to use its headers."""
    client = scope.get("client")
    return client[0] if client else "unknown"


def by_header(name: str) -> Callable[[Scope], str]:
    """Return a function that takes the key from the header `name`, such as an API key; without it, the address."""
    return lambda scope: f"{name}:{value}" if (value := header(scope, name)) else by_address(scope)


class RateLimit(Middleware):
    """Limits the requests per key.

    `app`: the application; `connection`: the client; `rate`: as for `limit`, for example `"10/second; 100/minute"`.
    `key(scope)`: returns the key of a request, or `None` to leave it uncounted. `exempt`: prefixes of paths that are
    not counted. `slow`: a rate above which requests are delayed by `delay` seconds instead of being refused. `name`:
    the name of the limit. `options`: more options of `limit`.
    """

    def __init__(
        self,
        app: App,
        connection: Connection,
        rate: str,
        *,
        key: Callable[[Scope], str | None] = by_address,
        exempt: tuple[str, ...] = (),
        slow: str | None = None,
        delay: float = 1.0,
        name: str = "requests",
        **options: Any,
    ) -> None:
        super().__init__(app, connection)
        self._policies = [(count, max(1, math.ceil(period_us / 1e6))) for count, period_us in rates(rate)]
        self._rate = rate
        self._slow = slow if slow is None or rates(slow) else None
        self._delay = delay
        self._key = key
        self._exempt = exempt
        self._name = name
        self._options = options
        self._client: Any = None
        self._limiters: tuple[RateLimiter, RateLimiter | None] | None = None

    async def _limits(self) -> tuple[RateLimiter, RateLimiter | None]:
        hf = await self._connection()
        if self._limiters is None or self._client is not hf:
            slow = None if self._slow is None else hf.limit(self._slow, name=f"{self._name} slow", **self._options)
            self._client, self._limiters = hf, (hf.limit(self._rate, name=self._name, **self._options), slow)
        return self._limiters

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = None if scope.get("path", "").startswith(self._exempt or ("\0",)) else self._key(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        limit, slow = await self._limits()
        decision = await limit.hit(key)
        fields = self._fields(decision)
        if not decision:
            await _refuse(scope, receive, send, decision, fields)
            return
        if slow is not None and not await slow.hit(key):
            await asyncio.sleep(self._delay)
        encoded = [(name.encode(), value.encode()) for name, value in fields.items()]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *encoded]}
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _fields(self, decision: Decision) -> dict[str, str]:
        reset_s = math.ceil(decision.reset_after)
        policies = [f'"{count}-per-{window_s}s";q={count};w={window_s}' for count, window_s in self._policies]
        decisive = next((n for n, (count, _) in enumerate(self._policies) if count == decision.limit), 0)
        return {
            "x-ratelimit-limit": str(decision.limit),
            "x-ratelimit-remaining": str(decision.remaining),
            "x-ratelimit-reset": str(math.ceil(time.time() + decision.reset_after)),
            "ratelimit-policy": ", ".join(policies),
            "ratelimit": f"{policies[decisive].partition(';')[0]};r={decision.remaining};t={reset_s}",
        }


async def _refuse(scope: Scope, receive: Receive, send: Send, decision: Decision, fields: dict[str, str]) -> None:
    retry_s = max(1, math.ceil(decision.retry_after))
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": "too many requests"})
        return
    body = {"error": "too many requests", "limit": decision.limit, "retry_after": retry_s}
    await answer(send, 429, body, {**fields, "retry-after": str(retry_s)})
