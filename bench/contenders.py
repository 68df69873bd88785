"""One uncontended acquire and release, by each contender. All talk to the same server on loopback.

The floor is the least that any lock with a token can do: two pre-packed commands on a bare socket. A contender is a
function that opens its client and gives back a function of one pair.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

import hiredis
import redis
import redis.asyncio
from redis.asyncio.lock import Lock as AsyncioLock
from redis.lock import Lock

import holdfast
import holdfast.aio

Pair = Callable[[], Any]
AsyncPair = Callable[[], Awaitable[Any]]

_TTL_S = 10
_DELETE = "if redis.call('GET',KEYS[1]) == ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0"


def _packed(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w.encode()), w.encode()) for w in words)


@contextmanager
def floor(port: int):
    """A bare socket: SET NX PX, then a script that deletes by token. No fence, no renewal, no errors handled."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = hiredis.Reader()

        def ask(command: bytes) -> Any:
            link.sendall(command)
            while True:
                reply = reader.gets()
                if reply is not False:
                    return reply
                reader.feed(link.recv(65536))

        sha = ask(_packed("SCRIPT", "LOAD", _DELETE)).decode()
        take = _packed("SET", "bench:floor", "token", "NX", "PX", str(_TTL_S * 1000))
        give = _packed("EVALSHA", sha, "1", "bench:floor", "token")

        def pair() -> None:
            assert ask(take) == b"OK"
            assert ask(give) == 1

        yield pair


@contextmanager
def ours(port: int):
    """holdfast, with fence, keeper, loss detection and retries."""
    with holdfast.connect(f"redis://127.0.0.1:{port}") as hf:
        yield lambda: hf.lock("bench:ours", ttl=_TTL_S).acquire().release()


@contextmanager
def redis_py(port: int):
    """redis-py's Lock: no fence."""
    with redis.Redis(port=port) as client:

        def pair() -> None:
            lock = Lock(client, "bench:redis-py", timeout=_TTL_S)
            assert lock.acquire()
            lock.release()

        yield pair


@asynccontextmanager
async def ours_asyncio(port: int):
    """holdfast.aio, all of the above."""
    hf = await holdfast.aio.connect(f"redis://127.0.0.1:{port}")

    async def pair() -> None:
        lease = await hf.lock("bench:ours-asyncio", ttl=_TTL_S).acquire()
        await lease.release()

    try:
        yield pair
    finally:
        await hf.close()


@asynccontextmanager
async def redis_asyncio(port: int):
    """redis.asyncio's Lock: no fence."""
    client = redis.asyncio.Redis(port=port)

    async def pair() -> None:
        lock = AsyncioLock(client, "bench:redis-asyncio", timeout=_TTL_S)
        assert await lock.acquire()
        await lock.release()

    try:
        yield pair
    finally:
        await client.aclose()


SYNC: dict[str, Callable[[int], AbstractContextManager[Pair]]] = {
    "raw socket (floor)": floor,
    "holdfast": ours,
    "redis-py Lock": redis_py,
}
ASYNC: dict[str, Callable[[int], AbstractAsyncContextManager[AsyncPair]]] = {
    "holdfast.aio": ours_asyncio,
    "redis.asyncio Lock": redis_asyncio,
}


def burst(pair: Pair, seconds: float, clock: Callable[[], float]) -> list[float]:
    """Pairs one after the other for that long; the seconds that each took."""
    taken, now = [], clock()
    end = now + seconds
    while now < end:
        pair()
        after = clock()
        taken.append(after - now)
        now = after
    return taken


async def burst_async(pair: AsyncPair, seconds: float, clock: Callable[[], float]) -> list[float]:
    """The same, awaited."""
    await asyncio.sleep(0)
    taken, now = [], clock()
    end = now + seconds
    while now < end:
        await pair()
        after = clock()
        taken.append(after - now)
        now = after
    return taken
