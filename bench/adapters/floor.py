"""The floors: the least that could be done, without errors handled, fences, renewal or retries.

`pair` and `aio` send two commands that were packed beforehand: SET NX PX, and a script that deletes by token. `fresh`
sends the same, but draws a token for each pair and packs it, as any lock must that tells its holders apart. `token`
hands a list element from one to the next by blocking pop: fair and fast, but whoever dies takes it along. `flock` is
the kernel's lock on a file.
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
    """The two commands of a name, packed once."""

    @cache
    def of(name: str) -> tuple[bytes, bytes]:
        take = packed("SET", name, "token", "NX", "PX", str(round(ttl * 1000)))
        return take, packed("EVALSHA", sha, "1", name, "token")

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

    def take(name: str):
        taking, giving = of(name)
        assert ask(taking) == b"OK"

        def give() -> None:
            assert ask(giving) == 1

        return give

    yield take
    link.close()


@contextmanager
def fresh(url: str, ttl: float):
    link = Link(url)
    sha, ask, ttl_ms = link.ask(packed("SCRIPT", "LOAD", _DELETE)).decode(), link.ask, str(round(ttl * 1000))

    def take(name: str):
        token = os.urandom(16).hex()
        assert ask(packed("SET", name, token, "NX", "PX", ttl_ms)) == b"OK"

        def give() -> None:
            assert ask(packed("EVALSHA", sha, "1", name, token)) == 1

        return give

    yield take
    link.close()


class Shared(asyncio.BufferedProtocol):
    """One connection for all tasks: what is asked in one turn of a busy loop goes out in one write."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._buffer = bytearray(_READ)
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self._reader.feed(self._buffer, 0, count)
        while (reply := self._reader.gets()) is not False:
            self._asked.popleft().set_result(reply)

    def ask(self, command: bytes) -> asyncio.Future[Any]:
        if not self._asked:
            self.transport.write(command)
        else:
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(command)
        future = self._loop.create_future()
        self._asked.append(future)
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

    async def take(name: str):
        taking, giving = of(name)
        assert await ask(taking) == b"OK"

        async def give() -> None:
            assert await ask(giving) == 1

        return give

    yield take
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
        """Whoever comes first makes the token of a name."""
        if link().ask(packed("SET", f"{name}:made", "1", "NX")) is not None:
            link().ask(packed("LPUSH", name, "token"))
        return packed("BLPOP", name, "0"), packed("LPUSH", name, "token")

    def take(name: str):
        taking, giving = of(name)
        ask = link().ask
        assert ask(taking) is not None
        return lambda: ask(giving)

    yield take


@contextmanager
def flock(folder: str, ttl: float):  # noqa: ARG001 - the kernel ends it with the process
    def take(name: str):
        file = os.open(os.path.join(folder, f"flock-{name}"), os.O_RDWR | os.O_CREAT)
        fcntl.flock(file, fcntl.LOCK_EX)
        return lambda: os.close(file)

    yield take


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
