"""Bells: how a waiter sleeps and who wakes it.

A waiter says that it expects a ring before it asks, so that a ring which comes between its question and its sleep is
kept. Ringing an unknown token is no error: notifications make things faster, nothing else. Whoever wants to know of it
is told.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.engines import Waker


class ThreadWaker:
    """A bell for a thread: a lock that is taken to sleep and opened to ring."""

    __slots__ = ("_clock", "_lock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            return  # it was rung before and nobody has slept since

    async def wait(self, until_ns: int) -> None:
        self.sleep(until_ns)

    def sleep(self, until_ns: int) -> None:
        """What `wait` does, for threads that have no coroutine."""
        stop = self._clock.watch(self.wake)
        try:
            seconds = self._clock.timeout_s(until_ns)
            if seconds is None:
                # A hand-moved clock rings when it jumps; until then only a real ring counts.
                if self._clock.now_ns() < until_ns:
                    self._lock.acquire()
            else:
                self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        finally:
            stop()


class WaiterRegistry:
    """Which bell belongs to which token, in one process."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # a signal handler may ring while its thread does
        self._wakers: dict[str, Waker | bool] = {}
        self.on_unknown: Callable[[], None] | None = None

    def expect(self, token: str) -> None:
        """A ring for this token will be kept from now on."""
        self._wakers.setdefault(token, False)

    def forget(self, token: str) -> None:
        self._wakers.pop(token, None)

    def add(self, token: str, waker: Waker) -> bool:
        """Put a bell under the token; false if it was rung already, and then there is no need to sleep."""
        with self._guard:
            rung = self._wakers.get(token) is True
            self._wakers[token] = False if rung else waker
            return not rung

    def remove(self, token: str) -> bool:
        """Nobody sleeps on the bell any more; a ring is kept for the next sleep. True if it was rung."""
        with self._guard:
            rung = self._wakers.get(token) is True
            if token in self._wakers:
                self._wakers[token] = False
            return rung

    def wake(self, token: str) -> None:
        with self._guard:
            waker = self._wakers.get(token)
            if waker is not None:
                self._wakers[token] = True
        if waker is None and self.on_unknown is not None:
            self.on_unknown()
        if waker is not None and not isinstance(waker, bool):
            waker.wake()

    def wake_all(self, but: str = "") -> None:
        """Wake everybody (but this one), for instance because the engine closes."""
        for token in self._wakers.copy():  # in one step: others hang theirs meanwhile
            if token != but:
                self.wake(token)
