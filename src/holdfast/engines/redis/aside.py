"""Something that blocks for a moment, done for an event loop on a thread of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def aside(call: Callable[[], T]) -> T:
    """Not on the loop's own threads: they may all be taken."""
    worker, done = ThreadPoolExecutor(1, thread_name_prefix="holdfast-aside"), False
    try:
        result = await asyncio.get_running_loop().run_in_executor(worker, call)
        done = True
        return result
    finally:
        worker.shutdown(wait=done)  # a cancelled caller does not wait for what it no longer wants
