"""Run blocking work in a thread to its end, even if the task that waits for it is cancelled.

A thread cannot be cancelled. A cancelled task waits until the work is over, so that its next step, such as a cleanup,
does not run at the same time as the work.
"""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from holdfast.host import out_of_threads

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def finish_in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Call the function in a thread and return its result; a cancelled caller still waits until the function ends."""
    call = partial(contextvars.copy_context().run, function, *arguments)
    # An executor of its own: if the system refuses a thread, no other thread may run the call later.
    worker = ThreadPoolExecutor(1, thread_name_prefix="holdfast-blocking")
    try:
        # A future, not a task: a closing loop cancels all of its tasks, and the caller would continue too soon.
        work = asyncio.get_running_loop().run_in_executor(worker, call)
    except RuntimeError as error:
        raise out_of_threads("asyncio", error) from error
    finally:
        worker.shutdown(wait=False)
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        work.exception()  # retrieve the error, so that asyncio does not warn: the caller gets the cancellation
        raise cancelled
    return work.result()
