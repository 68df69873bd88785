"""Wake-ups: how a waiter sleeps, and how other threads wake it.

A waiter registers its token before it sends its command, so that the registry keeps a wake-up between the command and
the sleep. A wake-up for an unknown token is no error, because wake-ups only save time; the registry calls `on_unknown`.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

from holdfast.clock import NS_PER_MS, SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.engines import Waker


class ThreadWaker:
    """A waker for a thread: the sleeper acquires a lock, the waker releases it."""

    __slots__ = ("_clock", "_lock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            return  # the waker was woken before, and no thread has slept on it since

    async def wait(self, until_ns: int) -> None:
        self.sleep(until_ns)

    def sleep(self, until_ns: int) -> None:
        """Sleep like `wait`, for threads that have no coroutine."""
        stop = self._clock.watch(self.wake)
        try:
            seconds = self._clock.timeout_s(until_ns)
            if seconds is None:
                # A clock that a test moves by hand wakes this sleeper when it jumps; until then only a wake-up ends the
                # sleep.
                if self._clock.now_ns() < until_ns:
                    self._lock.acquire()
            else:
                self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        finally:
            stop()


class WaiterRegistry:
    """The wakers of this process's waiters, by token."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # a signal handler may wake a waiter while its own thread does
        self._wakers: dict[str, Waker | bool] = {}  # true: woken, false: expected
        self.on_unknown: Callable[[], None] | None = None

    def expect(self, token: str) -> None:
        """Keep wake-ups for this token from now on."""
        self._wakers.setdefault(token, False)

    def forget(self, token: str) -> None:
        """Drop the token and any wake-up that was kept for it."""
        self._wakers.pop(token, None)

    def add(self, token: str, waker: Waker) -> bool:
        """Register the waker for the token; return false, and register nothing, if a wake-up was already kept."""
        with self._guard:
            woken = self._wakers.get(token) is True
            self._wakers[token] = False if woken else waker
            return not woken

    def remove(self, token: str) -> bool:
        """Unregister the waker, and keep the next wake-up for the next sleep; return true if the waiter was woken."""
        with self._guard:
            woken = self._wakers.get(token) is True
            if token in self._wakers:
                self._wakers[token] = False
            return woken

    def wake(self, token: str) -> None:
        """Wake the waiter, or keep the wake-up until the waiter sleeps."""
        with self._guard:
            waker = self._wakers.get(token)
            if waker is not None:
                self._wakers[token] = True
        if waker is None and self.on_unknown is not None:
            self.on_unknown()
        if waker is not None and not isinstance(waker, bool):
            waker.wake()

    def wake_all(self, but: str = "") -> None:
        """Wake every waiter except the one with the token `but`, for instance because the client closes."""
        for token in self._wakers.copy():  # `copy` is one step: other threads register their tokens meanwhile
            if token != but:
                self.wake(token)


# A waiter without wake-ups polls after the first pause; each further pause is 1.5 times as long, up to the last.
_PAUSE_FIRST_NS, _PAUSE_LAST_NS = 50 * NS_PER_MS, 500 * NS_PER_MS


class PollSchedule:
    """When the waiters of a client poll, where wake-ups do not arrive: soon at first, then less often."""

    def __init__(self) -> None:
        self._pauses: dict[str, int] = {}

    def next_ns(self, token: str, until_ns: int) -> int:
        """Return when the waiter polls next, at most `until_ns`."""
        pause_ns = self._pauses.get(token, _PAUSE_FIRST_NS)
        self._pauses[token] = min(_PAUSE_LAST_NS, pause_ns * 3 // 2)
        return min(until_ns, SYSTEM.now_ns() + int(pause_ns * random.uniform(0.7, 1.3)))  # noqa: S311 - spreads, no secret

    def forget(self, token: str) -> None:
        """Forget the pause of a waiter that waits no longer."""
        self._pauses.pop(token, None)
