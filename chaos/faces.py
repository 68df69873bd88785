"""The two faces behind one shape, so that each workload is written once.

The rule: a workload is a coroutine. On the blocking face nothing in it ever suspends, and each actor is a thread; on
the asyncio face each actor is a task of one loop.
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
    """What a workload needs of a face. Clients, locks and leases are those of the face itself."""

    name: str

    async def connect(self, url: str, label: str, observer: Observer | None) -> Any:
        """A client."""

    async def close(self, client: Any) -> None:
        """Close a client."""

    def holding(self, lock: Any) -> AbstractAsyncContextManager[Any]:
        """Enter the block of a lock or a leader."""

    async def settled(self, answer: Any) -> Any:
        """What a method of the face gave, awaited where it has to be."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def live(self, lives: Sequence[Life]) -> None:
        """Run them all, beside each other, to their end."""

    def stall(self, seconds: float) -> None:
        """Make the event loop stand still, if there is one. Returns when it has."""

    def storm(self, rng: random.Random, url: str, label: str, attempt: Attempt) -> None:
        """Start many attempts with a client of their own, and end each at some point of its life.

        The client lives on, as that of a program does: what it left behind is not freed by its end.
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

    async def settled(self, answer: Any) -> Any:
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
        """There is no loop."""

    def storm(self, rng: random.Random, url: str, label: str, attempt: Attempt) -> None:
        """Many threads whose patience is shorter than a round trip."""
        if label not in self._stormed:
            self._stormed[label] = holdfast.connect(url, label=label)
        client = self._stormed[label]
        with suppress(HoldfastError):  # dialled first, or nobody would get as far as the queue
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

    async def settled(self, answer: Any) -> Any:
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
        """Many tasks, each cancelled somewhere between its first step and its last."""

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
