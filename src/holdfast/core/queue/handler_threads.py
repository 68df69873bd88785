"""Hands: the threads in which a worker's plain handlers run.

They are of one run of a worker: a handler that outlives its run keeps its thread, and takes nothing of the next one.
They are daemons, so that such a handler does not keep the process from ending: what it had was given back. The pools of
the standard library would wait for it at the end of the interpreter, for ever. Those that nobody uses any more end,
also where an interrupt has kept their worker from saying so.
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
    """As many threads as were ever needed at once; each does one deed after the other."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def give(self, deed: Callable[[], object], needed: int) -> None:
        """Have it done; so many are to be done at the same time. It must not raise."""
        if len(self._threads) < needed:
            thread = threading.Thread(target=_work, args=(self._todo,), name="holdfast-hand", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._todo.put(deed)

    def __del__(self) -> None:
        self._dismiss()

    def _dismiss(self) -> None:
        for _ in self._threads:
            self._todo.put(None)

    def let_go(self, *, wait: bool) -> None:
        """There is nothing more to do. If nothing is being done either, they are gone soon, and can be waited for."""
        self._dismiss()
        until_s = monotonic() + _JOIN_S
        for thread in self._threads if wait else ():
            thread.join(max(0.0, until_s - monotonic()))


def _work(todo: SimpleQueue[Callable[[], object] | None]) -> None:
    """It knows only what is to be done, so that it keeps nobody alive."""
    while (deed := todo.get()) is not None:
        deed()
        del deed
