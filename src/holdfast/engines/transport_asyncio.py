"""The asyncio half of the transports: the waker of an event loop, and the transport of local stores."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from holdfast.engines.transport import BaseTransport
from holdfast.errors import InvalidConfig
from holdfast.host import out_of_threads
from holdfast.interrupts import raise_if_of_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Command
    from holdfast.engines import Promise, Reply, Waker
    from holdfast.engines.local import Store
    from holdfast.engines.transport import WakeupListener

T = TypeVar("T")


class AsyncioWaker:
    """A waker for a task: any thread may wake it, the task sleeps in its own loop."""

    __slots__ = ("_clock", "_event", "_loop")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            return  # the loop is closed, and its sleepers with it

    async def wait(self, until_ns: int) -> None:
        stop = self._clock.watch(self.wake)
        try:
            if self._clock.now_ns() >= until_ns:
                return
            async with asyncio.timeout(self._clock.timeout_s(until_ns)):
                await self._event.wait()
            self._event.clear()
        except TimeoutError as error:
            raise_if_of_signal(error)
            return
        finally:
            stop()


class AsyncioTransport(BaseTransport):
    """The half that tasks use: it suspends."""

    def __init__(self, listener: WakeupListener) -> None:
        super().__init__(listener)
        self._loop = asyncio.get_running_loop()

    def check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            rule = "a client belongs to the event loop in which it was opened: open one client in each event loop"
            raise InvalidConfig("loop", asyncio.get_running_loop(), rule)

    def waker(self) -> Waker:
        return AsyncioWaker(self._listener.clock)

    def run_callback(self, call: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # the loop is closed, and its users with it


class LocalAsyncio(AsyncioTransport):
    """A local store in an event loop.

    A store that may block (on a file lock, on a disk) answers on one worker thread, whole commands at a time. The
    command of a cancelled caller keeps running there; the core undoes it, and a tombstone refuses it if the undo was
    faster.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.store = store
        self._worker: ThreadPoolExecutor | None = None

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Reply]:
        if self.store.quick:
            return self.store.answer_all(commands, until_ns)
        return await self._on_worker(partial(self.store.answer_all, commands, until_ns))

    async def promise(self, until_ns: int | None = None) -> Promise:  # noqa: ARG002 - a look at this machine
        return self.store.promise()

    async def close(self) -> None:
        if self.store.quick:
            self.store.close()
        else:
            await self._on_worker(self.store.close)
        if self._worker is not None:
            self._worker.shutdown(wait=True)

    def check_loop(self) -> None:
        if not self.store.quick:  # a quick store answers at once, and waits in no loop
            super().check_loop()

    async def _on_worker(self, call: Callable[[], T]) -> T:
        self.check_loop()
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="holdfast-store")
        try:
            running = self._loop.run_in_executor(self._worker, call)
        except RuntimeError as error:  # a refused thread leaves its call in the queue: another must never run it
            worker, self._worker = self._worker, None
            worker.shutdown(wait=False, cancel_futures=True)
            raise out_of_threads(self.store.name, error) from error
        return await running
