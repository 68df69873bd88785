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
    from holdfast.engines import Bell


class ThreadBell:
    """A bell for a thread: a lock that is taken to sleep and opened to ring."""

    __slots__ = ("_clock", "_lock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            return  # it was rung before and nobody has slept since

    async def wait(self, until_ns: int) -> None:
        self.sleep(until_ns)

    def sleep(self, until_ns: int) -> None:
        """What `wait` does, for threads that have no coroutine."""
        stop = self._clock.watch(self.ring)
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


class Board:
    """Which bell belongs to which token, in one process."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # a signal handler may ring while its thread does
        self._bells: dict[str, Bell | bool] = {}
        self.on_stray: Callable[[], None] | None = None

    def expect(self, token: str) -> None:
        """A ring for this token will be kept from now on."""
        self._bells.setdefault(token, False)

    def forget(self, token: str) -> None:
        self._bells.pop(token, None)

    def hang(self, token: str, bell: Bell) -> bool:
        """Put a bell under the token; false if it was rung already, and then there is no need to sleep."""
        with self._guard:
            rung = self._bells.get(token) is True
            self._bells[token] = False if rung else bell
            return not rung

    def take_down(self, token: str) -> bool:
        """Nobody sleeps on the bell any more; a ring is kept for the next sleep. True if it was rung."""
        with self._guard:
            rung = self._bells.get(token) is True
            if token in self._bells:
                self._bells[token] = False
            return rung

    def ring(self, token: str) -> None:
        with self._guard:
            bell = self._bells.get(token)
            if bell is not None:
                self._bells[token] = True
        if bell is None and self.on_stray is not None:
            self.on_stray()
        if bell is not None and not isinstance(bell, bool):
            bell.ring()

    def ring_all(self, but: str = "") -> None:
        """Wake everybody (but this one), for instance because the engine closes."""
        for token in self._bells.copy():  # in one step: others hang theirs meanwhile
            if token != but:
                self.ring(token)
