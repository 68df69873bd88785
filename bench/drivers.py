"""How a worker calls its candidate: with threads if the candidate blocks, with tasks if it is awaited.

Loops that are timed closely (`burst`, `decide`) are written for both, so that neither pays for the other. The rest is
written once, as coroutines; a thread finishes them in one step, because a blocking candidate never suspends.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

Release = Callable[[], Awaitable[None]]
clock = time.monotonic


class ThreadDriver:
    """Calls a blocking candidate."""

    def __init__(self, adapter: Callable[..., Any], url: str, ttl: float, options: dict[str, Any]) -> None:
        self._exits = ExitStack()
        self._acquire = self._exits.enter_context(adapter(url, ttl, **options))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        raise RuntimeError("a blocking candidate suspended")

    async def acquire(self, name: str) -> Release:
        release = self._acquire(name)

        async def released() -> None:
            release()

        return released

    async def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))  # noqa: ASYNC251 - a thread has to block here

    async def together(self, works: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        works, done, failed = list(works), {}, []

        def caller(number: int) -> None:
            try:
                done[number] = self.run(works[number])
            except BaseException as error:
                failed.append(error)

        callers = [threading.Thread(target=caller, args=(number,)) for number in range(len(works))]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        if failed:
            raise failed[0]
        return [done[number] for number in range(len(works))]

    async def burst(self, name: str, seconds: float) -> list[float]:
        """Acquire and release for so long; return the duration of each pair."""
        acquire, durations, now = self._acquire, [], clock()
        end = now + seconds
        while now < end:
            acquire(name)()
            after = clock()
            durations.append(after - now)
            now = after
        return durations

    async def decide(self, key: str, seconds: float) -> tuple[list[float], int]:
        """Ask a rate limit for so long; return the duration of each decision, and how many were allowed."""
        decide, durations, allowed, now = self._acquire, [], 0, clock()
        end = now + seconds
        while now < end:
            allowed += bool(decide(key))
            after = clock()
            durations.append(after - now)
            now = after
        return durations, allowed

    def close(self) -> None:
        self._exits.close()


class TaskDriver:
    """Calls an asyncio candidate."""

    def __init__(self, loop: str, adapter: Callable[..., Any], url: str, ttl: float, options: dict[str, Any]) -> None:
        self._runner = asyncio.Runner(loop_factory=importlib.import_module(loop).new_event_loop)
        self._exits = AsyncExitStack()
        self.acquire = self.run(self._exits.enter_async_context(adapter(url, ttl, **options)))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    async def together(self, works: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        return await asyncio.gather(*works)

    async def burst(self, name: str, seconds: float) -> list[float]:
        acquire, durations, now = self.acquire, [], clock()
        end = now + seconds
        while now < end:
            release = await acquire(name)
            await release()
            after = clock()
            durations.append(after - now)
            now = after
        return durations

    async def decide(self, key: str, seconds: float) -> tuple[list[float], int]:
        decide, durations, allowed, now = self.acquire, [], 0, clock()
        end = now + seconds
        while now < end:
            allowed += bool(await decide(key))
            after = clock()
            durations.append(after - now)
            now = after
        return durations, allowed

    def close(self) -> None:
        self.run(self._exits.aclose())
        self._runner.close()


Driver = ThreadDriver | TaskDriver
