"""An asyncio connection that all tasks of a client share.

Replies come in the order of the commands. A cancelled caller keeps its place in that order, and its reply is dropped
when it comes. One timer per connection watches the oldest command; when its reply is late, the outcome of every command
on the connection is unknown, and all callers get `ReplyLost`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engines.redis.connection_blocking import INCOMPLETE, reader
from holdfast.errors import ReplyLost, UnavailableReason
from holdfast.host import out_of_threads
from holdfast.interrupts import raise_if_of_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engines.redis.topology import Node

T = TypeVar("T")

_READ = 65536


async def run_in_thread(call: Callable[[], T]) -> T:
    """Run a call that blocks for a moment on a new thread, and return its result.

    The loop's own executor is not used: all of its threads may be taken.
    """
    worker, done = ThreadPoolExecutor(1, thread_name_prefix="holdfast-blocking"), False
    try:
        try:
            running = asyncio.get_running_loop().run_in_executor(worker, call)
        except RuntimeError as error:
            worker.shutdown(wait=False, cancel_futures=True)
            raise out_of_threads("redis", error) from error
        result = await running
        done = True
        return result
    finally:
        worker.shutdown(wait=done)  # a cancelled caller does not wait for the result


class MultiplexedConnection(asyncio.BufferedProtocol):
    """One connection, shared by many tasks."""

    def __init__(self, writer: asyncio.StreamWriter, url: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._url = url
        self._writer = writer
        self._transport: asyncio.Transport = writer.transport  # type: ignore[assignment]
        self._reader = reader()
        self._buffer = bytearray(_READ)
        self._view = memoryview(self._buffer)
        self._pending: deque[tuple[asyncio.Future[Any], float]] = deque()  # each with its deadline
        self._unsent: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self._transport.set_protocol(self)

    @classmethod
    async def open(cls, node: Node) -> MultiplexedConnection:
        return cls(await node.open_stream(), node.url)

    def send(self, command: bytes, limit_s: float) -> asyncio.Future[Any]:
        """Send one command; the future gives its reply, or `ReplyLost`."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.closed:
            future.set_exception(self._lost("the connection was closed"))
            return future
        until_s = self._loop.time() + limit_s
        self._write(command)
        self._pending.append((future, until_s))
        if self._timer is None:
            self._timer = self._loop.call_at(until_s, self._check_deadline)
        return future

    async def send_all(self, commands: bytes, count: int, limit_s: float) -> list[Any]:
        """Send several commands in one write, and return that many replies."""
        futures = [self.send(commands if number == 0 else b"", limit_s) for number in range(count)]
        return list(await asyncio.gather(*futures))

    def _write(self, commands: bytes) -> None:
        if not self._pending:
            self._transport.write(commands)
        elif commands:
            # Other tasks wait for replies, so the loop is busy: commands of one round of the loop go out in one write.
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(commands)

    def _flush(self) -> None:
        commands, self._unsent = self._unsent, []
        if not self.closed:
            self._transport.write(b"".join(commands))

    def _check_deadline(self) -> None:
        """Set the timer for the oldest command again, or close the connection if its reply is late."""
        self._timer = None
        if not self._pending:
            return
        oldest_s = min(until_s for _, until_s in self._pending)
        if oldest_s > self._loop.time():
            self._timer = self._loop.call_at(oldest_s, self._check_deadline)
        else:
            self._fail("no answer in time")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - one buffer serves all
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._reader.feed(self._buffer, 0, nbytes)  # type: ignore[arg-type]
            while (reply := self._reader.gets()) is not INCOMPLETE:
                future, _ = self._pending.popleft()
                if not future.done():
                    future.set_result(reply)
        except Exception as error:
            self._fail(f"unreadable reply: {error!r}")
            raise_if_of_signal(error)

    def eof_received(self) -> bool:
        self._fail("the server closed the connection")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(str(error or "the connection was closed"))

    def close(self) -> None:
        self._fail("the connection was closed")

    def _fail(self, cause: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._writer.close()
        if self._timer is not None:
            self._timer.cancel()
        pending, self._pending = self._pending, deque()
        for future, _ in pending:
            if not future.done():
                future.set_exception(self._lost(cause))

    def _lost(self, cause: str) -> ReplyLost:
        return ReplyLost("redis", UnavailableReason.REPLY_LOST, f"{self._url}: {cause}")
