"""What all message queues of the race share: a handler that does nothing but count."""

from __future__ import annotations

import asyncio
import time


class Handled:
    """Counts what the handler was given, and says when it was all."""

    def __init__(self) -> None:
        self._left = 0
        self._all = asyncio.Event()

    def expect(self, count: int) -> None:
        self._left = count
        self._all.clear()

    def one(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._all.set()

    async def seconds(self) -> float:
        """From now until everything has been handled."""
        began = time.monotonic()
        await asyncio.wait_for(self._all.wait(), 300)
        return time.monotonic() - began
