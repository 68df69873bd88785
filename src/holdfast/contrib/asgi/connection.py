"""One client for the whole application: opened at the first use, closed with the application.

An application is assembled before its event loop runs, and a client belongs to one loop. So the middleware share a
`Connection`, which opens the client later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from holdfast import aio

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_ENDS = ("lifespan.shutdown.complete", "lifespan.shutdown.failed")


class Connection:
    """A client that is opened at the first use: `await connection()`.

    `url`, `options`: as for `aio.connect`.
    """

    def __init__(self, url: str | None = None, **options: Any) -> None:
        self._url = url
        self._options = options
        self._opening: asyncio.Task[aio.Holdfast] | None = None

    async def __call__(self) -> aio.Holdfast:
        if self._opening is None:
            self._opening = asyncio.ensure_future(aio.connect(self._url, **self._options))
        try:
            return await asyncio.shield(self._opening)
        except Exception:
            self._opening = None  # the next call tries again
            raise

    async def close(self) -> None:
        """Close the client, if one was opened; the next call opens another."""
        opening, self._opening = self._opening, None
        if opening is not None:
            await (await opening).close()


class Middleware:
    """An ASGI application around another one; it closes the connection when the server stops."""

    def __init__(self, app: App, connection: Connection) -> None:
        self._app = app
        self._connection = connection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._serve(scope, receive, send)
            return

        async def closing(message: Message) -> None:
            if message["type"] in _ENDS:
                await self._connection.close()
            await send(message)

        await self._app(scope, receive, closing)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


def header(scope: Scope, name: str) -> str:
    """Return the first header of that name, or an empty text."""
    wanted = name.lower().encode("latin-1")
    return next((value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted), "")


async def answer(send: Send, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
    """Send a complete JSON response."""
    import json  # noqa: PLC0415 - the application answers most requests

    text = json.dumps(body).encode()
    fields = {"content-type": "application/json", "content-length": str(len(text)), **(headers or {})}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": text})
