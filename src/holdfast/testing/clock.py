"""A clock that only a test moves.

`advance` moves both the monotonic and the wall clock and wakes every sleeper, so that a day of renewals takes a moment;
`set_wall` sets the wall clock alone, as people and time servers do.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.clock import NS, NS_PER_US, Seconds, timeout_ns
from holdfast.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Callable

_START_NS = 1_000 * NS
_PAUSE_NS = NS // 200
_START_WALL_US = 1_700_000_000_000_000


class ManualClock:
    """A clock that a test moves: `connect("memory://…", clock=ManualClock())`."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._now_ns = _START_NS
        self._wall_us = _START_WALL_US
        self._watchers: dict[object, Callable[[], None]] = {}

    def now_ns(self) -> int:
        return self._now_ns

    def wall_us(self) -> int:
        return self._wall_us

    def timeout_s(self, until_ns: int) -> float | None:
        """Return `None`: a sleep until `until_ns` has no timeout, because only `advance` ends it.

        A pause of a few milliseconds passes by itself: it only keeps a loop from running hot, and after an `advance`
        in the middle of its work the loop has to look again.
        """
        left_ns = until_ns - self._now_ns
        return max(0, left_ns) / NS if left_ns <= _PAUSE_NS else None

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever the clock is moved; return a function that ends that."""
        key = object()
        with self._guard:
            self._watchers[key] = wake

        def stop() -> None:
            with self._guard:
                self._watchers.pop(key, None)

        return stop

    def advance(self, seconds: Seconds) -> None:
        """Move both clocks forward by `seconds`."""
        passed_ns = timeout_ns(seconds, setting="seconds")
        if passed_ns is None:
            raise InvalidConfig("seconds", seconds, "it must be a length of time, not None")
        with self._guard:
            self._now_ns += passed_ns
            self._wall_us += passed_ns // NS_PER_US
        self._wake()

    def set_wall(self, us: int) -> None:
        """Set the wall clock to `us`, microseconds since 1970, forward or back; the monotonic clock stays."""
        with self._guard:
            self._wall_us = us
        self._wake()

    def _wake(self) -> None:
        # Call the watchers outside the lock: a woken watcher may read the clock, or stop watching, at once.
        with self._guard:
            watchers = tuple(self._watchers.values())
        for wake in watchers:
            wake()
