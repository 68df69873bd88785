"""The threads that run the plain handlers of a worker.

The threads belong to one run of a worker: a handler that outlives its run keeps its thread, which gets no message of
the next run. They are daemon threads, so that such a handler does not keep the process alive; its message was released.
The thread pools of the standard library would wait for the handler when the interpreter ends, possibly for ever. Unused
threads end, even if an interrupt kept the worker from stopping them.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_JOIN_S = 1.0


class HandlerThreads:
    """Threads that run jobs, each one job after the other: as many threads as jobs ever ran at the same time."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, job: Callable[[], object], needed: int) -> None:
        """Run a job, which must not raise; `needed` is how many jobs run at the same time."""
        if len(self._threads) < needed:
            thread = threading.Thread(target=_work, args=(self._jobs,), name="holdfast-handler", daemon=True)
            try:
                thread.start()
                self._threads.append(thread)
            except RuntimeError:  # the system refuses a thread: a running one takes the job later, or this one runs it
                if not self._threads:
                    job()
                    return
        self._jobs.put(job)

    def __del__(self) -> None:
        self._dismiss()

    def _dismiss(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def stop(self, *, wait: bool) -> None:
        """End the threads after their present jobs. `wait`: join them, for a second at most; pass it if no job runs."""
        self._dismiss()
        until_s = monotonic() + _JOIN_S
        for thread in self._threads if wait else ():
            thread.join(max(0.0, until_s - monotonic()))


def _work(jobs: SimpleQueue[Callable[[], object] | None]) -> None:
    """Run jobs. The thread has no reference to its `HandlerThreads`, so that the garbage collector can free it."""
    while (job := jobs.get()) is not None:
        job()
        del job
