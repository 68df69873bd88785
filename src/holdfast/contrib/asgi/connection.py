"""One client for the whole application: opened at the first use, closed with the application.

An application is assembled before its event loop runs, and a client belongs to one loop. So the middleware share a
`Connection`, which opens the client later.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from holdfast import aio
from holdfast.config import settings
from holdfast.errors import InvalidConfig, InvalidName
from holdfast.names import checked_name, name_of

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

UNAVAILABLE = 503
HEADER_MAX_BYTES = 8192
NAME_MAX_BYTES = 200
KEY_MAX_BYTES = 256

_ENDS = ("lifespan.shutdown.complete", "lifespan.shutdown.failed")
# A browser sees the close code of an accepted WebSocket only, never the status of a refused handshake.
_CLOSE_CODES = {200: 1000, 429: 1013, 503: 1013}
_POLICY_VIOLATION = 1008


class RefusedError(Exception):
    """A request that the middleware cannot accept: the status of the answer, and the reason for the sender."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason


class Connection:
    """A client that is opened at the first use: `await connection()`.

    `url`, `options`: as for `aio.connect`.
    """

    def __init__(self, url: str | None = None, **options: Any) -> None:
        settings(url, namespace=options.get("namespace"))  # a wrong URL is an error now, not at the first request
        self._url = url
        self._options = options
        self._opening: asyncio.Task[aio.Holdfast] | None = None

    async def __call__(self) -> aio.Holdfast:
        # A new call starts another attempt after a failed one. A call that waited for the failed attempt raises its
        # error and does not clear `_opening`, because another attempt may already run.
        if self._opening is None or _failed(self._opening):
            self._opening = asyncio.ensure_future(aio.connect(self._url, **self._options))
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Close the client, if one was opened; the next call opens another."""
        opening, self._opening = self._opening, None
        if opening is not None:
            await asyncio.wait([opening])
            if not _failed(opening):
                await opening.result().close()


def _failed(opening: asyncio.Task[aio.Holdfast]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


class Middleware:
    """An ASGI application around another one; it closes the connection when the server stops."""

    def __init__(self, app: App, connection: Connection) -> None:
        if not isinstance(connection, Connection):
            kind = type(connection).__name__
            raise InvalidConfig("connection", kind, 'it must be a Connection, such as Connection("redis://host")')
        self._app = app
        self._connection = connection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            try:
                await self._serve(scope, receive, send)
            except RefusedError as refused:
                later = {"retry-after": "1"} if refused.status == UNAVAILABLE else None
                await answer(scope, receive, send, refused.status, {"error": refused.reason}, later)
            return

        async def closing(message: Message) -> None:
            if message["type"] in _ENDS:
                await self._connection.close()
            await send(message)

        await self._app(scope, receive, closing)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


def header(scope: Scope, name: str) -> str:
    """Return the first header of that name, or an empty text. A header above the maximum refuses the request."""
    wanted = name.lower().encode("latin-1")
    value = next((value for key, value in scope["headers"] if key.lower() == wanted), b"")
    if len(value) > HEADER_MAX_BYTES:
        raise RefusedError(431, f"header {name} has {len(value)} bytes; the maximum is {HEADER_MAX_BYTES}")
    return bytes(value).decode("latin-1")


def digest(*parts: str | bytes) -> str:
    """Return the SHA-256 digest of the parts. The length before each part keeps ('ab', 'c') and ('a', 'bc') apart."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        hashed.update(b"%d:" % len(data))
        hashed.update(data)
    return hashed.hexdigest()


def checked(name: str) -> str:
    """Return the name of a middleware if it leaves room for every key; else raise `InvalidName`."""
    size = len(name_of(checked_name(name), "k").encode()) - 2
    if size > NAME_MAX_BYTES:
        rule = f"the name of a middleware may have at most {NAME_MAX_BYTES} bytes in UTF-8, this one has {size}"
        raise InvalidName(name, f"{rule} (3 for each % and /)")
    return name


async def answer(
    scope: Scope, receive: Receive, send: Send, status: int, body: dict[str, Any], headers: dict[str, str] | None = None
) -> None:
    """Send a complete JSON response. Accept a WebSocket and close it, with the code for this status."""
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        # A browser fails the handshake if the server selects none of the subprotocols that it offers.
        await send({"type": "websocket.accept", "subprotocol": next(iter(scope.get("subprotocols") or ()), None)})
        reason = str(body.get("error", body.get("status", "")))
        await send({"type": "websocket.close", "code": _CLOSE_CODES.get(status, _POLICY_VIOLATION), "reason": reason})
        return
    import json  # noqa: PLC0415 - the application answers most requests

    text = json.dumps(body).encode()
    fields = {"content-type": "application/json", "content-length": str(len(text)), **(headers or {})}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": text})
