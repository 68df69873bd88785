"""The two faces behind one interface, so that each workload is written once.

A workload is a coroutine. On the blocking face nothing in it suspends, and each worker is a thread; on the asyncio face
each worker is a task of one loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import holdfast
from holdfast import aio
from holdfast.core.step import run
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from holdfast.observer import Observer

    Life = Callable[[], Awaitable[None]]
    Attempt = Callable[[Any, float | None], Awaitable[None]]


class Face(Protocol):
    """The interface that a workload uses. Clients, locks and leases are those of the face itself."""

    name: str

    async def connect(self, url: str, label: str, observer: Observer | None) -> Any:
        """Open a client."""

    async def close(self, client: Any) -> None:
        """Close a client."""

    def holding(self, lock: Any) -> AbstractAsyncContextManager[Any]:
        """Enter the block of a lock or a leader."""

    async def resolved(self, answer: Any) -> Any:
        """Return the result of a method of the face, awaited on the asyncio face."""

    async def sleep(self, seconds: float) -> None:
        """Sleep."""

    def live(self, lives: Sequence[Life]) -> None:
        """Run all workers at the same time, to their end."""

    def stall(self, seconds: float) -> None:
        """Block the event loop, if there is one; return when that is over."""

    def storm(self, rng: random.Random, url: str, label: str, attempt: Attempt) -> None:
        """Start many attempts with one client, and end each at a random point.

        The client stays open, as that of a program does, so that closing it does not free what the attempts left
        behind.
        """


class BlockingFace:
    """Threads."""

    name = "blocking"
    attempts = 12

    def __init__(self) -> None:
        self._stormed: dict[str, Any] = {}

    async def connect(self, url: str, label: str, observer: Observer | None) -> Any:
        return holdfast.connect(url, label=label, observer=observer)

    async def close(self, client: Any) -> None:
        client.close(timeout=10)

    @asynccontextmanager
    async def holding(self, lock: Any) -> AsyncIterator[Any]:
        with lock as lease:
            yield lease

    async def resolved(self, answer: Any) -> Any:
        return answer

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - nothing suspends on this face

    def live(self, lives: Sequence[Life]) -> None:
        failed: list[BaseException] = []

        def one(life: Life) -> None:
            try:
                run(life())  # type: ignore[arg-type]
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=one, args=(life,)) for life in lives]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while self._stormed:
            self._stormed.popitem()[1].close(timeout=10)
        if failed:
            raise failed[0]

    def stall(self, seconds: float) -> None:
        """Do nothing: there is no loop."""

    def storm(self, rng: random.Random, url: str, label: str, attempt: Attempt) -> None:
        """Start many threads whose timeout is shorter than a round trip."""
        if label not in self._stormed:
            self._stormed[label] = holdfast.connect(url, label=label)
        client = self._stormed[label]
        with suppress(HoldfastError):  # connect first, or no attempt would reach the waiting line
            client.lock(f"{label}/first", ttl=5).acquire(timeout=1).release()

        def one(patience_s: float) -> None:
            with suppress(HoldfastError):
                run(attempt(client, patience_s))  # type: ignore[arg-type]

        patience = [rng.choice((0, 0.001, 0.01, 0.05, 0.2)) for _ in range(self.attempts)]
        threads = [threading.Thread(target=one, args=(seconds,)) for seconds in patience]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class AsyncioFace:
    """Tasks of one loop."""

    name = "asyncio"
    attempts = 24

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._storms: set[asyncio.Task[None]] = set()
        self._stormed: dict[str, Any] = {}

    async def connect(self, url: str, label: str, observer: Observer | None) -> Any:
        return await aio.connect(url, label=label, observer=observer)

    async def close(self, client: Any) -> None:
        await client.close(timeout=10)

    @asynccontextmanager
    async def holding(self, lock: Any) -> AsyncIterator[Any]:
        async with lock as lease:
            yield lease

    async def resolved(self, answer: Any) -> Any:
        return await answer

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def live(self, lives: Sequence[Life]) -> None:
        async def all_of_them() -> None:
            self._loop = asyncio.get_running_loop()
            await asyncio.gather(*(life() for life in lives))
            while self._storms:
                await asyncio.gather(*self._storms)
            while self._stormed:
                await self._stormed.popitem()[1].close(timeout=10)

        asyncio.run(all_of_them())
        self._loop = None

    def stall(self, seconds: float) -> None:
        over = threading.Event()

        def stand_still() -> None:
            time.sleep(seconds)
            over.set()

        if self._loop is not None:
            self._loop.call_soon_threadsafe(stand_still)
            over.wait(seconds + 5)

    def storm(self, rng: random.Random, url: str, label: str, attempt: Attempt) -> None:
        """Start many tasks, each cancelled between its first step and its last."""

        async def one(client: Any, life_s: float) -> None:
            with suppress(TimeoutError, HoldfastError):
                async with asyncio.timeout(life_s):
                    await attempt(client, None)

        async def all_of_them(before: tuple[asyncio.Task[None], ...]) -> None:
            await asyncio.gather(*before)  # one storm after another: they share a client
            if label not in self._stormed:
                self._stormed[label] = await aio.connect(url, label=label)
            client = self._stormed[label]
            with suppress(HoldfastError):  # as above
                await (await client.lock(f"{label}/first", ttl=5).acquire(timeout=1)).release()
            lives = [rng.choice((0, 0.0005, 0.002, 0.01, 0.05, 0.2)) for _ in range(self.attempts)]
            await asyncio.gather(*(one(client, life_s) for life_s in lives))

        def start() -> None:
            storm = asyncio.create_task(all_of_them(tuple(self._storms)))
            self._storms.add(storm)
            storm.add_done_callback(self._storms.discard)

        if self._loop is not None:
            self._loop.call_soon_threadsafe(start)


FACES: dict[str, Callable[[], Face]] = {"blocking": BlockingFace, "asyncio": AsyncioFace}
