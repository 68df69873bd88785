"""The asyncio form of local engines, and the bell that rings in an event loop.

A store that may block (a file lock, a disk) answers on one worker thread, whole commands at a time. A cancelled caller
leaves its command running there; the core undoes it, and a tombstone refuses it if the undo was faster.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from holdfast.commands import Acquire
from holdfast.engines.local import answer, sleep_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Answer, Command
    from holdfast.engines import Bell
    from holdfast.engines.local import Store

T = TypeVar("T")


class LoopBell:
    """A bell for a task: any thread may ring it, the task sleeps in its own loop."""

    __slots__ = ("_clock", "_event", "_loop")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            return  # the loop is closed, and its sleepers with it

    async def wait(self, until_ns: int) -> None:
        stop = self._clock.watch(self.ring)
        try:
            if self._clock.now_ns() >= until_ns:
                return
            async with asyncio.timeout(self._clock.timeout_s(until_ns)):
                await self._event.wait()
            self._event.clear()
        except TimeoutError:
            return
        finally:
            stop()


class LocalAsyncio:
    """The form that suspends."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._loop = asyncio.get_running_loop()
        self._worker: ThreadPoolExecutor | None = None

    async def apply(self, command: Command, until_ns: int | None = None) -> Answer:
        if self.store.quick:
            return answer(self.store, command, until_ns)
        return await self._on_worker(partial(answer, self.store, command, until_ns))

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Answer]:
        if self.store.quick:
            return self.store.answer_all(commands, until_ns)
        return await self._on_worker(partial(self.store.answer_all, commands, until_ns))

    async def wait(self, ask: Acquire, until_ns: int) -> Answer | None:
        await sleep_on(self.store, ask.token, self.bell(), until_ns)
        return None

    def bell(self) -> Bell:
        return LoopBell(self.store.clock)

    def stir(self) -> None:
        self.store.board.ring_all()

    def deliver(self, call: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # the loop is closed: there is nobody left to tell

    async def close(self) -> None:
        await self._on_worker(self.store.close)
        if self._worker is not None:
            self._worker.shutdown(wait=True)

    async def _on_worker(self, call: Callable[[], T]) -> T:
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="holdfast-store")
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)
