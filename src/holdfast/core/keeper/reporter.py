"""The reporter: it logs the events of the keeper and passes them to the observer, on a thread of its own.

An observer and a logging handler are user code: they may block, or raise `SystemExit`. The keeper must not wait for
them, so it only appends its events to a queue. Callers' own threads report their events directly.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from holdfast.clock import NS
from holdfast.core.step import run
from holdfast.observer import Observer, emit, level_of, log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.clock import Clock
    from holdfast.engines import Waker

# A lease becomes LOST after the observer returns, or after this time if the observer blocks.
OBSERVER_WAIT_S = 0.1
_IDLE_NS = NS
_JOIN_S = 1.0
# A blocked observer costs memory for this many events. The queue drops only events that repeat without bound.
_EVENTS_MAX = 10_000
_DROPPED_FIRST = frozenset(("renewed", "renewed_late", "renewal_failed", "unavailable"))


class Reporter:
    """Runs the log and the observer for one keeper. Its thread starts with the first event and ends when idle."""

    def __init__(self, observer: Observer | None, clock: Clock, waker: Waker, on_end: Callable[[], object]) -> None:
        self.observer = observer
        self._clock = clock
        self._waker = waker
        self._on_end = on_end  # wakes a `close()` that waits for this thread
        self._calls: deque[Callable[[], object]] = deque()
        self._guard = threading.RLock()
        self._thread: threading.Thread | None = None
        self._ending: threading.Thread | None = None
        self._stopping = False
        self._busy_since_s = 0.0  # 0 while no call runs
        self._dropped = 0

    def emit(
        self,
        kind: str,
        name: str,
        fence: int | None = None,
        seconds: float | None = None,
        detail: str = "",
        count: int = 1,
    ) -> None:
        """Log an event and pass it to the observer, soon, on the reporter's thread."""
        if self.observer is None and not log.isEnabledFor(level_of(kind, count)):
            return
        if len(self._calls) >= _EVENTS_MAX and kind in _DROPPED_FIRST:
            self._dropped += 1
            return
        self.put(partial(emit, self.observer, kind, name, fence, seconds, detail, count))

    def emit_here(self, *event: Any) -> None:
        """Log an event and pass it to the observer, on this thread."""
        emit(self.observer, *event)

    def runs_here(self) -> bool:
        """Return whether this thread is the reporter's: an observer, or a logging handler, has called the library."""
        return threading.current_thread() is self._thread

    def log_line(self, text: str) -> None:
        """Log a warning, on the reporter's thread."""
        self.put(partial(log.warning, text))

    def log_error(self, text: str, error: BaseException) -> None:
        """Log an unexpected error, on the reporter's thread: a logging handler may block."""
        self.put(partial(log.error, text, exc_info=error))

    def put(self, call: Callable[[], object]) -> None:
        """Run the call on the reporter's thread, after the calls before it."""
        self._calls.append(call)
        if self._thread is None:
            self._start()
        self._waker.wake()

    def run_and_wait(self, calls: Sequence[Callable[[], object]]) -> None:
        """Run the calls on the reporter's thread; return when they have ended, or after `OBSERVER_WAIT_S` at most.

        While a call blocks, and on the reporter's own thread, return at once.
        """
        busy_s = self._busy_since_s
        stuck = busy_s and monotonic() - busy_s >= OBSERVER_WAIT_S
        done = threading.Lock()
        done.acquire()
        for call in calls:
            self.put(call)
        self.put(done.release)
        if not stuck and not self.runs_here():
            done.acquire(timeout=OBSERVER_WAIT_S)

    def stop(self) -> None:
        """End the thread as soon as all calls have ended."""
        self._stopping = True
        self._waker.wake()

    def stopped(self) -> bool:
        """Return whether the thread has ended, after all calls."""
        if self._thread is not None:
            return False
        ending = self._ending
        if ending is not None:
            ending.join(_JOIN_S)  # it is about to return
        return ending is None or not ending.is_alive()

    def _start(self) -> None:
        with self._guard:
            if self._thread is not None:
                return
            self._thread = thread = threading.Thread(target=self._work, name="holdfast-reporter", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._thread = None
            else:
                return
        self._run_all()  # the machine has no room for a thread: this thread reports

    def _work(self) -> None:
        while True:
            self._run_all()
            until_ns = self._clock.now_ns() + _IDLE_NS
            if not self._stopping:
                run(self._waker.wait(until_ns))
            if self._calls or (self._clock.now_ns() < until_ns and not self._stopping):
                continue
            self._ending, self._thread = self._thread, None
            if self._calls:  # `put` may have seen this thread just before it ended
                self._start()
            self._on_end()
            return

    def _run_all(self) -> None:
        while self._calls:
            self._busy_since_s = monotonic()
            try:
                self._calls.popleft()()
                if self._dropped and not self._calls:
                    dropped, self._dropped = self._dropped, 0
                    emit(self.observer, "events_dropped", "", detail=f"events of the keeper: {dropped}")
            except IndexError:
                pass  # two threads run the calls, because one of them could not start the other
            except BaseException as error:  # also SystemExit: user code must not end this thread
                with suppress(BaseException):
                    log.error("holdfast: user code raised an interruption in an event", exc_info=error)
            finally:
                self._busy_since_s = 0.0
