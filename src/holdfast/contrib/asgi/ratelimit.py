"""Rate limiting of requests per key, across all servers: status 429, and headers with the remaining requests.

The headers are the common ones, `X-RateLimit-*` and `Retry-After`, and those of the IETF draft, `RateLimit` and
`RateLimit-Policy`. The middleware rounds seconds up, so that a client that waits this long is not refused again.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.clock import Seconds, seconds_of
from holdfast.contrib.asgi.connection import (
    KEY_MAX_BYTES,
    UNAVAILABLE,
    App,
    Connection,
    Message,
    Middleware,
    Receive,
    RefusedError,
    Scope,
    Send,
    answer,
    checked,
    digest,
    header,
)
from holdfast.errors import Closed, InvalidConfig, Unavailable
from holdfast.rules.limit import rates

if TYPE_CHECKING:
    from holdfast.aio import RateLimiter
    from holdfast.core.limit.limit import Decision

# The result of `key` or `verify`: a text or `None`, or an awaitable of one.
KeyResult: TypeAlias = str | Awaitable[str | None] | None

_DIGEST, _SLOW = "sha256:", "slow:"


def by_address(scope: Scope) -> str:
    """Return the client's address as the server reports it, an IPv6 address as its /64 network.

    A client can use every address of its network. Behind a proxy, configure the server to use the proxy's headers.
    """
    client = scope.get("client")
    address: str = client[0] if client else "unknown"
    if ":" in address:
        try:
            parsed = ipaddress.IPv6Address(address.partition("%")[0])
        except ValueError:
            return address
        return str(parsed.ipv4_mapped or ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
    return address


def by_header(name: str, verify: Callable[[str], KeyResult]) -> Callable[[Scope], Awaitable[str]]:
    """Return a function that counts by the identity in a header, such as an API key, and otherwise by address.

    `name`: the header. `verify(value)`: returns the identity of the sender if the value is valid, or `None`; it may be
    a coroutine function. Any client can send any value, so an invalid one must not have a count of its own. The key
    contains a digest of the identity, never the text.
    """

    async def key(scope: Scope) -> str:
        value = header(scope, name)
        identity = await _resolved(verify(value)) if value else None
        return f"{name.lower()}:{digest(identity)}" if identity else by_address(scope)

    return key


async def _resolved(text: KeyResult) -> str | None:
    found = text if text is None or isinstance(text, str) or not hasattr(text, "__await__") else await text
    if not isinstance(found, str | None):
        raise InvalidConfig("key", type(found).__name__, "the key of a request must be text or None: use str()")
    return found


def _fit(key: str) -> str:
    """Return the key if it can stand in a name and a log, otherwise a digest of it: any client may choose it."""
    if key and key.isprintable() and len(key.encode()) <= KEY_MAX_BYTES and not key.startswith((_DIGEST, _SLOW)):
        return key
    return _DIGEST + digest(key)


class RateLimit(Middleware):
    """Limits the requests per key.

    `app`: the application; `connection`: the client; `rate`: as for `limit`, for example `"10/second; 100/minute"`.
    `name`: the name of the limit, at most 200 bytes; all servers of an application share it, and every other limit has
    another one. `key(scope)`: returns the key of a request, or `None` to leave it uncounted; it may be a coroutine
    function. `exempt`: prefixes of paths that are not counted. `slow`: a rate above which requests are delayed by
    `delay` seconds instead of being refused. `options`: more options of `limit`.
    """

    def __init__(
        self,
        app: App,
        connection: Connection,
        rate: str,
        *,
        name: str,
        key: Callable[[Scope], KeyResult] = by_address,
        exempt: tuple[str, ...] = (),
        slow: str | None = None,
        delay: Seconds = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(app, connection)
        self._policies = {period_us / 1e6: _policy(count, period_us) for count, period_us in rates(rate)}
        self._rate = rate
        self._slow = slow if slow is None or rates(slow) else None
        self._delay = seconds_of(delay, setting="delay")
        if not callable(key):
            raise InvalidConfig("key", key, "it must be callable with the scope, such as by_address")
        self._key = key
        self._exempt = exempt
        self._name = checked(name)
        self._options = options
        self._on_unavailable = options.get("on_unavailable", "local")
        self._client: Any = None
        self._limiters: tuple[RateLimiter, RateLimiter | None] | None = None

    async def _limits(self) -> tuple[RateLimiter, RateLimiter | None]:
        hf = await self._connection()
        if self._limiters is None or self._client is not hf:
            slow = None if self._slow is None else hf.limit(self._slow, name=self._name, **self._options)
            self._client, self._limiters = hf, (hf.limit(self._rate, name=self._name, **self._options), slow)
        return self._limiters

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = None if scope.get("path", "").startswith(self._exempt) else await _resolved(self._key(scope))
        if key is None:
            await self._app(scope, receive, send)
            return
        key = _fit(key)
        try:
            limit, slow = await self._limits()
            decision = await limit.hit(key)
        except (Unavailable, Closed):  # without a client there is no local count
            if self._on_unavailable != "allow":
                raise RefusedError(UNAVAILABLE, "the rate limit is unavailable") from None
            await self._app(scope, receive, send)
            return
        if decision.trouble and self._on_unavailable == "deny":
            raise RefusedError(UNAVAILABLE, "the rate limit is unavailable")
        fields = {} if decision.trouble and self._on_unavailable == "allow" else self._fields(decision)
        if not decision:
            retry_s = max(1, math.ceil(decision.retry_after))
            body = {"error": "too many requests", "limit": decision.limit, "retry_after": retry_s}
            await answer(scope, receive, send, 429, body, {**fields, "retry-after": str(retry_s)})
            return
        if slow is not None and not await slow.hit(_SLOW + key):
            await asyncio.sleep(self._delay)
        encoded = [(name.encode(), value.encode()) for name, value in fields.items()]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *encoded]}
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _fields(self, decision: Decision) -> dict[str, str]:
        reset_s, policy = math.ceil(decision.reset_after), self._policies[decision.window].partition(";")[0]
        return {
            "x-ratelimit-limit": str(decision.limit),
            "x-ratelimit-remaining": str(decision.remaining),
            "x-ratelimit-reset": str(math.ceil(time.time() + decision.reset_after)),
            "ratelimit-policy": ", ".join(self._policies.values()),
            "ratelimit": f"{policy};r={decision.remaining};t={reset_s}",
        }


def _policy(count: int, period_us: int) -> str:
    """Return a policy as the IETF draft writes it. Its window has whole seconds; its name tells all windows apart."""
    period = f"{period_us // 1_000_000}s" if period_us % 1_000_000 == 0 else f"{period_us // 1000}ms"
    return f'"{count}-per-{period}";q={count};w={math.ceil(period_us / 1e6)}'
