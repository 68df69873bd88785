"""The handler that all message queues of the benchmark share: it only counts."""

from __future__ import annotations

import asyncio
import time


class MessageCounter:
    """Counts handled messages, and reports when all have been handled."""

    def __init__(self) -> None:
        self._left = 0
        self._all = asyncio.Event()

    def expect(self, count: int) -> None:
        """Start to count so many messages."""
        self._left = count
        self._all.clear()

    def one(self) -> None:
        """Count one message."""
        self._left -= 1
        if self._left <= 0:
            self._all.set()

    async def seconds(self) -> float:
        """Return the seconds from now until all messages have been handled."""
        began = time.monotonic()
        await asyncio.wait_for(self._all.wait(), 300)
        return time.monotonic() - began
