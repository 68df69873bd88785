"""Webhook deduplication: the application handles a delivery that comes twice only once, across all servers.

The application's status decides. With a status below 400, the application has handled the delivery, and the middleware
stores the marker before it sends the response. Otherwise, or if the application fails, the application handles the
sender's next try. A duplicate gets 200 "ignored". A duplicate that comes while a server handles the first delivery
waits for its outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.clock import Seconds
from holdfast.contrib.asgi.connection import (
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
from holdfast.errors import Closed, InvalidConfig, LeaseLost, NotAcquired, Unavailable

_BODY_MAX = 25 * 1024 * 1024
_FAILED = 400


class _NotHandledError(Exception):
    """The application answered with an error status, or raised the error that is the cause."""


class _GoneError(Exception):
    """The sender disconnected before the body was complete."""


class Webhook(Middleware):
    """Passes deliveries to `path` on to the application until it has handled each of them once.

    `app`: the application; `connection`: the client. `recipe(scope, body)`: returns the idempotency key of a delivery;
    it counts for requests with the same path and query. `name`: the name of the `once`, at most 200 bytes; all servers
    of an application share it, and other applications have another one. `window`: how long a key is remembered,
    `lease`: the ttl while the application handles a delivery, `timeout`: how long a duplicate waits, all in seconds.
    `largest`: the most bytes of a body.
    """

    def __init__(
        self,
        app: App,
        connection: Connection,
        recipe: Callable[[Scope, bytes], str],
        *,
        path: str,
        name: str,
        window: Seconds = 3600.0,
        lease: Seconds = 30.0,
        timeout: Seconds = 20.0,
        largest: int = _BODY_MAX,
    ) -> None:
        super().__init__(app, connection)
        if not callable(recipe):
            raise InvalidConfig("recipe", recipe, "it must be callable with the scope and the body, such as github")
        if not isinstance(path, str) or not path.startswith("/"):
            raise InvalidConfig("path", path, "it must begin with /, as the path of a request does")
        self._recipe = recipe
        self._path = path.rstrip("/")
        self._name = checked(name)
        self._settings: dict[str, Any] = {"window": window, "lease": lease}
        self._timeout = timeout
        self._largest = largest

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"].rstrip("/") != self._path:
            await self._app(scope, receive, send)
            return
        try:
            body = await _read(scope, receive, self._largest)
        except _GoneError:
            return
        response: list[Message] = []
        if not await self._handle(scope, receive, body, response):
            await answer(scope, receive, send, 200, {"status": "ignored", "reason": "duplicate"})
            return
        for message in response:
            await send(message)

    async def _handle(self, scope: Scope, receive: Receive, body: bytes, response: list[Message]) -> bool:
        """Return whether this server handled the delivery; `response` receives the application's messages."""
        key = self._key(scope, body)
        began = False
        try:
            hf = await self._connection()
            once = hf.once(self._name, **self._settings)
            async with once.first(key, timeout=self._timeout) as first:
                if not first:
                    return False
                began = True
                await _run(self._app, scope, _replay(body, receive), response)
        except _NotHandledError as failed:
            if failed.__cause__ is not None:
                raise failed.__cause__ from None
        except NotAcquired:
            raise RefusedError(UNAVAILABLE, "another server is handling this delivery; try again") from None
        except (LeaseLost, Unavailable, Closed) as error:
            if not began:
                raise RefusedError(UNAVAILABLE, f"not handled: {getattr(error, 'reason', 'closed')}") from None
        return True  # the work is over, so its response counts, also if the marker was not stored

    def _key(self, scope: Scope, body: bytes) -> str:
        """Return the key of a delivery: a digest of the request line and of the recipe's key, which may be any text."""
        root, query = scope.get("root_path", ""), scope.get("query_string", b"")
        return digest(scope["method"], root, self._path, query, self._recipe(scope, body))


async def _run(app: App, scope: Scope, receive: Receive, response: list[Message]) -> None:
    """Run the application and store its response; raise `_NotHandledError`, from its own error, if it fails."""

    async def store(message: Message) -> None:
        response.append(message)

    try:
        await app(scope, receive, store)
    except Exception as error:
        raise _NotHandledError from error
    status = next((int(message["status"]) for message in response if message["type"] == "http.response.start"), 500)
    if status >= _FAILED:
        raise _NotHandledError


async def _read(scope: Scope, receive: Receive, largest: int) -> bytes:
    """Return the whole body. A client may send it in any number of pieces, so no piece costs more than its size."""
    announced = header(scope, "content-length")
    size, body = int(announced[:20]) if announced.isdecimal() else 0, bytearray()
    while size <= largest:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _GoneError
        body += message.get("body", b"")
        size = len(body)
        if size <= largest and not message.get("more_body"):
            return bytes(body)
    raise RefusedError(413, f"the body has more than {largest} bytes")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body once more, then the further messages."""
    left = [body]

    async def receive_again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return receive_again
