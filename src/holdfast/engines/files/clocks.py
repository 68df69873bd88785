"""When something happened, without comparing the clocks of two machines.

A client writes a timestamp as the boot of its machine and the time on the clock of that boot. Within one boot, such a
timestamp is exact. A timestamp of another boot cannot be converted: it counts from the moment at which this client
first saw it, on this client's own clock. That moment is never too early, because a client sees an event only after it
happened.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.clock import NS_PER_US, SYSTEM

_SIGHTINGS_MAX = 10_000


class Timestamp(NamedTuple):
    """A moment on the clock of one boot; the calendar of that machine beside it is for people."""

    boot: str
    at_us: int
    wall_us: int


class Clocks:
    """The timestamps of other machines that one client has seen, and when it saw them."""

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self._seen: dict[object, int] = {}

    def now(self) -> Timestamp:
        return Timestamp(self.boot, SYSTEM.now_ns() // NS_PER_US, SYSTEM.wall_us())

    def here_us(self, timestamp: Timestamp) -> int:
        """Return the timestamp on this machine's clock, or the moment at which this client first saw it."""
        if timestamp.boot == self.boot:
            return timestamp.at_us
        return self.first_seen_us((timestamp.boot, timestamp.at_us))

    def first_seen_us(self, what: object) -> int:
        """Return when this client first saw this value."""
        seen = self._seen.get(what)
        if seen is None:
            if len(self._seen) >= _SIGHTINGS_MAX:
                # Forget the oldest half. A forgotten value counts from its next sighting: later, never earlier.
                for old in list(self._seen)[: _SIGHTINGS_MAX // 2]:
                    self._seen.pop(old, None)
            seen = self._seen.setdefault(what, SYSTEM.now_ns() // NS_PER_US)
        return seen

    def began_us(self, timestamp: Timestamp) -> int:
        """Return the timestamp on this machine's clock, for display; of another machine, converted by the calendars."""
        if timestamp.boot == self.boot:
            return timestamp.at_us
        now = self.now()
        return now.at_us - max(0, now.wall_us - timestamp.wall_us)
