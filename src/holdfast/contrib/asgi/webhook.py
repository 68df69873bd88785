"""Webhook deduplication: the application handles a delivery that comes twice only once, across all servers.

The application's status decides. With a status below 400, the application has handled the delivery, and the middleware
stores the marker before it sends the response. Otherwise, or if the application fails, the application handles the
sender's next try. A duplicate gets 200 "ignored". A duplicate that comes while a server handles the first delivery
waits for its outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.contrib.asgi.connection import App, Connection, Message, Middleware, Receive, Scope, Send, answer
from holdfast.errors import LeaseLost, NotAcquired, Unavailable

_BODY_MAX = 25 * 1024 * 1024
_FAILED = 400


class _NotHandledError(Exception):
    """The application answered with an error status."""


class _GoneError(Exception):
    """The sender disconnected before the body was complete."""


class Webhook(Middleware):
    """Passes deliveries to `path` on to the application until it has handled each of them once.

    `app`: the application; `connection`: the client. `recipe(scope, body)`: returns the idempotency key of a delivery.
    `name`: the name of the `once`. `window`: how long a key is remembered, `lease`: the ttl while the application
    handles a delivery, `timeout`: how long a duplicate waits, all in seconds. `largest`: the most bytes of a body.
    """

    def __init__(
        self,
        app: App,
        connection: Connection,
        recipe: Callable[[Scope, bytes], str],
        *,
        path: str,
        name: str = "webhooks",
        window: float = 3600.0,
        lease: float = 30.0,
        timeout: float = 20.0,
        largest: int = _BODY_MAX,
    ) -> None:
        super().__init__(app, connection)
        self._recipe = recipe
        self._path = path
        self._name = name
        self._settings: dict[str, Any] = {"window": window, "lease": lease}
        self._timeout = timeout
        self._largest = largest

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"].rstrip("/") != self._path.rstrip("/"):
            await self._app(scope, receive, send)
            return
        try:
            body = await _read(receive, self._largest)
        except _GoneError:
            return
        if body is None:
            await answer(send, 413, {"error": f"more than {self._largest} bytes"})
            return
        response: list[Message] = []
        try:
            first = await self._handle(scope, receive, body, response)
        except NotAcquired:
            busy = {"error": "another server is handling this delivery; try again"}
            await answer(send, 503, busy, {"retry-after": "1"})
            return
        except Unavailable as error:
            await answer(send, 503, {"error": f"not handled: {error.reason}"}, {"retry-after": "1"})
            return
        if not first:
            await answer(send, 200, {"status": "ignored", "reason": "duplicate"})
            return
        for message in response:
            await send(message)

    async def _handle(self, scope: Scope, receive: Receive, body: bytes, response: list[Message]) -> bool:
        """Return whether this server handled the delivery; `response` receives the application's messages."""
        hf = await self._connection()
        once = hf.once(self._name, **self._settings)
        began = False
        try:
            async with once.first(self._recipe(scope, body), timeout=self._timeout) as first:
                if not first:
                    return False
                began = True
                if await _status(self._app, scope, _replay(body, receive), response) >= _FAILED:
                    raise _NotHandledError
        except _NotHandledError:
            return True
        except LeaseLost:
            if not began:
                raise
        return True


async def _status(app: App, scope: Scope, receive: Receive, response: list[Message]) -> int:
    """Run the application; return the status of its response."""

    async def store(message: Message) -> None:
        response.append(message)

    await app(scope, receive, store)
    return next((int(message["status"]) for message in response if message["type"] == "http.response.start"), 500)


async def _read(receive: Receive, largest: int) -> bytes | None:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _GoneError
        parts.append(message.get("body", b""))
        if sum(map(len, parts)) > largest:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body once more, then the further messages."""
    left = [body]

    async def receive_again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return receive_again
