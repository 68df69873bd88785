"""A real web server (uvicorn) in a thread of the test, and requests of raw bytes to it."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from holdfast.testing import eventually


@contextlib.contextmanager
def serving(app: Any, **settings: Any) -> Iterator[int]:
    """Serve the application until the block ends; return the port."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, **{"log_level": "critical", "lifespan": "on", **settings}))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    try:
        eventually(lambda: server.started, 20, "a server that listens")
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()


def status_of(port: int, request: bytes) -> int:
    """Send a request as it is; return the status of the answer, 0 if the server only closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        link.sendall(request)
        head = b""
        while b"\r\n" not in head and (part := link.recv(4096)):
            head += part
    return int(head.split(b" ", 2)[1]) if head else 0


def request(path: bytes, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> bytes:
    """Return a POST request of these bytes."""
    lines = [b"POST " + path + b" HTTP/1.1", b"host: app", b"connection: close", b"content-length: %d" % len(body)]
    return b"\r\n".join([*lines, *(name + b": " + value for name, value in headers), b"", b""]) + body
