"""Cancel a budget's `reserve` after 0, 1, 2, ... steps of the event loop."""

import asyncio
import contextlib
import itertools
from collections.abc import Coroutine
from typing import Any

from holdfast import aio

AT_ONCE_S = 3.0


async def _cancel_after(operation: Coroutine[Any, Any, object], steps: int) -> bool:
    """Cancel the operation after so many steps of the loop; return false if it had ended before."""
    task = asyncio.ensure_future(operation)
    for _ in range(steps):
        if task.done():
            break
        await asyncio.sleep(0)
    in_time = not task.done() and task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return in_time and task.cancelled()


async def cancel_reserves(url: str) -> int:
    """Cancel at every step until four calls end in time; return how many were cancelled.

    After each one, the whole budget must be free for another client, long before the hold ends.
    """
    async with await aio.connect(url) as client, await aio.connect(url) as other:
        mine, theirs = (each.budget("fees", limit=10, hold=3600) for each in (client, other))
        cancelled = through = 0
        for steps in itertools.count():
            if through > 3:
                return cancelled
            if not await _cancel_after(mine.reserve(f"key {steps}", 10), steps):
                through += 1
                continue
            cancelled, through = cancelled + 1, 0
            async with asyncio.timeout(AT_ONCE_S):
                while not client._client.keeper.idle():  # noqa: ASYNC110 - the keeper is another thread
                    await asyncio.sleep(0)
                assert (await theirs.peek(f"key {steps}"))[:2] == (0, 0), f"cancelled after {steps} steps"
                await theirs.reserve(f"key {steps}", 10)
    return cancelled
