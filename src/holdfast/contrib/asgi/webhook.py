"""Deliveries that come twice are handled once, over all servers.

The application's answer decides: below 400 it was handled, and a note says so before the answer goes out; else, or if
the application fails, the sender's next try is handled. A duplicate is answered 200 "ignored". One that comes while the
first is being handled waits for its outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.contrib.asgi.connection import App, Around, Connection, Message, Receive, Scope, Send, answer
from holdfast.errors import LeaseLost, NotAcquired, Unavailable

_BODY_MAX = 25 * 1024 * 1024
_FAILED = 400


class _NotHandledError(Exception):
    """The application has answered that it could not."""


class _GoneError(Exception):
    """The sender hung up before it had said all: half a delivery is none."""


class Webhook(Around):
    """At most one success for each delivery to `path`. `recipe(scope, body)` says what makes two of them the same."""

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
        told: list[Message] = []
        try:
            first = await self._handle(scope, receive, body, told)
        except NotAcquired:
            await answer(send, 503, {"error": "it is being handled; try again"}, {"retry-after": "1"})
            return
        except Unavailable as error:
            await answer(send, 503, {"error": f"not handled: {error.reason}"}, {"retry-after": "1"})
            return
        if not first:
            await answer(send, 200, {"status": "ignored", "reason": "duplicate"})
            return
        for message in told:
            await send(message)

    async def _handle(self, scope: Scope, receive: Receive, body: bytes, told: list[Message]) -> bool:
        """Whether it was for this server to handle; what the application has said is in `told`."""
        hf = await self._connection()
        once = hf.once(self._name, **self._settings)
        began = False
        try:
            async with once.first(self._recipe(scope, body), timeout=self._timeout) as first:
                if not first:
                    return False
                began = True
                if await _status(self._app, scope, _again(body, receive), told) >= _FAILED:
                    raise _NotHandledError
        except _NotHandledError:
            return True
        except LeaseLost:
            if not began:
                raise
        return True


async def _status(app: App, scope: Scope, receive: Receive, told: list[Message]) -> int:
    async def keep(message: Message) -> None:
        told.append(message)

    await app(scope, receive, keep)
    return next((int(message["status"]) for message in told if message["type"] == "http.response.start"), 500)


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


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, for the application; then whatever else comes."""
    left = [body]

    async def told() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return told
