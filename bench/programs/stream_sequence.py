"""How redis-stream-client-go owns streams, ported directly: the peer of the owner measurements.

A stream with a consumer group has one entry per owned stream. The pod that reads an entry sets a lock for it, and a
task extends the lock twice per ttl. A scan finds dead pods: it reads pending entries, the oldest first, so many at a
time; entries without a lock are acknowledged, added again and deleted, and the next reader gets them.

All commands of one process share a connection, and only the blocking read has its own: the client is as cheap as
possible, so that only the sequence of commands is compared.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from bench.adapters.floor import Shared, packed

STREAM, GROUP = "seed-input", "seed-group"
LOCK = "seed-lock:"
# As redsync extends: a key that is gone is set again.
_EXTEND = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
elseif redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
  return 1
end
return 0"""
_FILL = """
for number = 1, tonumber(ARGV[1]) do
  local body = '{"DataStreamName":"stream-' .. number .. '","Info":{"user":' .. number .. '}}'
  redis.call('XADD', KEYS[1], '*', 'lbs-input', body)
end"""


class Pod:
    """One process that owns streams. It calls `added` and `lost` with the name of each."""

    def __init__(
        self, url: str, name: str, ttl: float, batch: int, added: Callable[[str], None], lost: Callable[[str], None]
    ) -> None:
        self._url, self._name, self._ttl, self._batch = url, f"redis-consumer-{name}", ttl, batch
        self._ttl_ms = str(round(ttl * 1000))
        self._added, self._lost = added, lost
        self._tasks: set[asyncio.Task[None]] = set()
        self.owned: dict[str, str] = {}  # by stream: the entry
        self.extensions = 0

    async def live(self, fill: int, ready: Callable[[], None]) -> None:
        """Run until the process ends."""
        self._link, self._reads = await _connected(self._url), await _connected(self._url)
        self._sha = (await self._ask("SCRIPT", "LOAD", _EXTEND)).decode()
        await self._ask("XGROUP", "CREATE", STREAM, GROUP, "$", "MKSTREAM")  # an existing group is no error
        ready()
        if fill:
            await self._ask("EVAL", _FILL, "1", STREAM, str(fill))
        await asyncio.gather(self._read(), self._scan())

    async def _ask(self, *words: str) -> Any:
        return await self._link.ask(packed(*words))

    async def _read(self) -> None:
        while True:
            command = packed("XREADGROUP", "GROUP", GROUP, self._name, "BLOCK", "0", "STREAMS", STREAM, ">")
            for entry, fields in (await self._reads.ask(command))[0][1]:
                await self._own(entry.decode(), json.loads(_fields(fields)["lbs-input"])["DataStreamName"])

    async def _own(self, entry: str, stream: str) -> None:
        key = _lock_key(stream, entry)
        if await self._ask("SET", key, self._name, "NX", "PX", self._ttl_ms) is None:
            return  # the original ends with an error here
        self.owned[stream] = entry
        self._added(stream)
        task = asyncio.create_task(self._extend(stream, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _extend(self, stream: str, key: str) -> None:
        while await self._ask("EVALSHA", self._sha, "1", key, self._name, self._ttl_ms):
            self.extensions += 1
            await asyncio.sleep(self._ttl / 2)
        del self.owned[stream]
        self._lost(stream)

    async def _scan(self) -> None:
        idle_ms = self._ttl_ms
        while True:
            span = ("IDLE", idle_ms, "-", "+", str(self._batch))
            for entry, *_ in await self._ask("XPENDING", STREAM, GROUP, *span):
                await self._recover(entry.decode())
            await asyncio.sleep(self._ttl * random.uniform(1, 1.1))

    async def _recover(self, entry: str) -> None:
        """Acknowledge first: of several pods, only the one whose acknowledgement counts continues."""
        found = await self._ask("XRANGE", STREAM, entry, entry)
        if not found:  # another pod recovered it
            await self._ask("XACK", STREAM, GROUP, entry)
            return
        fields = _fields(found[0][1])
        stream = json.loads(fields["lbs-input"])["DataStreamName"]
        if await self._ask("EXISTS", _lock_key(stream, entry)):
            return  # its pod is slow, and alive
        if not await self._ask("XACK", STREAM, GROUP, entry):
            return
        fields["_retry_count"] = str(int(fields.get("_retry_count", "0")) + 1)
        await self._ask("XADD", STREAM, "*", *(word for pair in fields.items() for word in pair))
        await self._ask("XDEL", STREAM, entry)


def _lock_key(stream: str, entry: str) -> str:
    return f"{LOCK}{stream}:{entry}"


def _fields(flat: list[bytes]) -> dict[str, str]:
    words = [word.decode() for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))


async def _connected(url: str) -> Shared:
    shared, place = Shared(), urlsplit(url)
    link = socket.create_connection((place.hostname or "", place.port or 0))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: shared, sock=link)
    return shared
