"""Work in a thread that nobody runs away from.

A thread cannot be cancelled. Whoever is cancelled while one works for it stays until the work is over: so that what
is done next, such as clearing up, cannot meet work that still goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def settled(function: Callable[..., T], *arguments: object) -> T:
    """Call it in a thread; whoever is cancelled meanwhile stays until it is over."""
    call = partial(contextvars.copy_context().run, function, *arguments)
    # No task: when a loop is closed all of its tasks are cancelled, and the one that waits would hear too soon.
    work = asyncio.get_running_loop().run_in_executor(None, call)
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        work.exception()  # looked at: being cancelled is what the caller hears
        raise cancelled
    return work.result()
