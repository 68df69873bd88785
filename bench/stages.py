"""Where a contender is called: by threads if it blocks, by tasks if it is awaited. A stage hides which.

What is timed closely (`burst`) is written for both, so that neither pays for the other. The rest is written once, as
coroutines, which a thread finishes in one step because a blocking contender never suspends.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

Give = Callable[[], Awaitable[None]]
clock = time.monotonic


class Threads:
    """The stage of a blocking contender."""

    def __init__(self, opener: Callable[..., Any], url: str, ttl: float, options: dict[str, Any]) -> None:
        self._exits = ExitStack()
        self._take = self._exits.enter_context(opener(url, ttl, **options))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        raise RuntimeError("a blocking contender suspended")

    async def take(self, name: str) -> Give:
        give = self._take(name)

        async def given() -> None:
            give()

        return given

    async def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))  # noqa: ASYNC251 - it blocks: that is the point

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
        take, taken, now = self._take, [], clock()
        end = now + seconds
        while now < end:
            take(name)()
            after = clock()
            taken.append(after - now)
            now = after
        return taken

    async def decide(self, key: str, seconds: float) -> tuple[list[float], int]:
        """How long each decision took, and how many allowed it."""
        decide, taken, allowed, now = self._take, [], 0, clock()
        end = now + seconds
        while now < end:
            allowed += bool(decide(key))
            after = clock()
            taken.append(after - now)
            now = after
        return taken, allowed

    def close(self) -> None:
        self._exits.close()


class Tasks:
    """The stage of an asyncio contender."""

    def __init__(self, loop: str, opener: Callable[..., Any], url: str, ttl: float, options: dict[str, Any]) -> None:
        self._runner = asyncio.Runner(loop_factory=importlib.import_module(loop).new_event_loop)
        self._exits = AsyncExitStack()
        self.take = self.run(self._exits.enter_async_context(opener(url, ttl, **options)))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    async def together(self, works: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        return await asyncio.gather(*works)

    async def burst(self, name: str, seconds: float) -> list[float]:
        take, taken, now = self.take, [], clock()
        end = now + seconds
        while now < end:
            give = await take(name)
            await give()
            after = clock()
            taken.append(after - now)
            now = after
        return taken

    async def decide(self, key: str, seconds: float) -> tuple[list[float], int]:
        decide, taken, allowed, now = self.take, [], 0, clock()
        end = now + seconds
        while now < end:
            allowed += bool(await decide(key))
            after = clock()
            taken.append(after - now)
            now = after
        return taken, allowed

    def close(self) -> None:
        self.run(self._exits.aclose())
        self._runner.close()


Stage = Threads | Tasks
