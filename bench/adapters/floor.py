"""The floors: the least that could be done, without error handling, fences, renewal or retries.

`pair` and `aio` send two commands that were packed before: SET NX PX, and a script that deletes by token. `fresh` sends
the same, but makes and packs a new token for each pair, as every lock must that tells its holders apart. `token` passes
a list element from one process to the next by blocking pop: fair and fast, but a process that dies takes the element
with it. `flock` is the kernel's lock on a file.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import threading
from collections import deque
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any

import hiredis

_DELETE = "if redis.call('GET',KEYS[1]) == ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0"
_READ = 65536


def packed(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w.encode()), w.encode()) for w in words)


def commands(sha: str, ttl: float):
    """Return a function that packs the two commands of a name, once."""

    @cache
    def of(name: str) -> tuple[bytes, bytes]:
        acquire = packed("SET", name, "token", "NX", "PX", str(round(ttl * 1000)))
        return acquire, packed("EVALSHA", sha, "1", name, "token")

    return of


class Link:
    """A bare blocking socket."""

    def __init__(self, url: str, timeout: float | None = None) -> None:
        self._socket = _connected(url)
        self._socket.settimeout(timeout)
        self._reader = hiredis.Reader()

    def ask(self, command: bytes) -> Any:
        self._socket.sendall(command)
        while True:
            reply = self._reader.gets()
            if reply is not False:
                return reply
            self._reader.feed(self._socket.recv(_READ))

    def close(self) -> None:
        self._socket.close()


@contextmanager
def pair(url: str, ttl: float):
    link = Link(url)
    of, ask = commands(link.ask(packed("SCRIPT", "LOAD", _DELETE)).decode(), ttl), link.ask

    def acquire(name: str):
        acquire_bytes, release_bytes = of(name)
        assert ask(acquire_bytes) == b"OK"

        def release() -> None:
            assert ask(release_bytes) == 1

        return release

    yield acquire
    link.close()


@contextmanager
def fresh(url: str, ttl: float):
    link = Link(url)
    sha, ask, ttl_ms = link.ask(packed("SCRIPT", "LOAD", _DELETE)).decode(), link.ask, str(round(ttl * 1000))

    def acquire(name: str):
        token = os.urandom(16).hex()
        assert ask(packed("SET", name, token, "NX", "PX", ttl_ms)) == b"OK"

        def release() -> None:
            assert ask(packed("EVALSHA", sha, "1", name, token)) == 1

        return release

    yield acquire
    link.close()


class Shared(asyncio.BufferedProtocol):
    """One connection for all tasks: the commands of one iteration of a busy loop go out in one write."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._buffer = bytearray(_READ)
        self._replies: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self._reader.feed(self._buffer, 0, count)
        while (reply := self._reader.gets()) is not False:
            self._replies.popleft().set_result(reply)

    def ask(self, command: bytes) -> asyncio.Future[Any]:
        if not self._replies:
            self.transport.write(command)
        else:
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(command)
        future = self._loop.create_future()
        self._replies.append(future)
        return future

    def _flush(self) -> None:
        self.transport.write(b"".join(self._unsent))
        self._unsent.clear()


@asynccontextmanager
async def aio(url: str, ttl: float):
    shared = Shared()
    loop, link = asyncio.get_running_loop(), _connected(url, blocking=False)
    connect = loop.create_unix_connection if link.family == socket.AF_UNIX else loop.create_connection
    await connect(lambda: shared, sock=link)
    of, ask = commands((await shared.ask(packed("SCRIPT", "LOAD", _DELETE))).decode(), ttl), shared.ask

    async def acquire(name: str):
        acquire_bytes, release_bytes = of(name)
        assert await ask(acquire_bytes) == b"OK"

        async def release() -> None:
            assert await ask(release_bytes) == 1

        return release

    yield acquire
    shared.transport.close()


@contextmanager
def token(url: str, ttl: float):  # noqa: ARG001 - there is no lease
    own = threading.local()

    def link() -> Link:
        if not hasattr(own, "link"):
            own.link = Link(url)
        return own.link

    @cache
    def of(name: str) -> tuple[bytes, bytes]:
        """Pack the commands of a name; the first process creates its token."""
        if link().ask(packed("SET", f"{name}:made", "1", "NX")) is not None:
            link().ask(packed("LPUSH", name, "token"))
        return packed("BLPOP", name, "0"), packed("LPUSH", name, "token")

    def acquire(name: str):
        acquire_bytes, release_bytes = of(name)
        ask = link().ask
        assert ask(acquire_bytes) is not None
        return lambda: ask(release_bytes)

    yield acquire


@contextmanager
def flock(folder: str, ttl: float):  # noqa: ARG001 - the kernel ends it with the process
    def acquire(name: str):
        file = os.open(os.path.join(folder, f"flock-{name}"), os.O_RDWR | os.O_CREAT)
        fcntl.flock(file, fcntl.LOCK_EX)
        return lambda: os.close(file)

    yield acquire


def _connected(url: str, *, blocking: bool = True) -> socket.socket:
    scheme, _, place = url.partition("://")
    if scheme == "unix":
        link = socket.socket(socket.AF_UNIX)
        link.connect(place)
    else:
        host, _, port = place.partition(":")
        link = socket.create_connection((host, int(port)))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setblocking(blocking)
    return link
