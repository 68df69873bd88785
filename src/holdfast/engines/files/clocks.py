"""When something happened, without comparing the clocks of two machines.

Whoever writes a date writes the boot of its machine and the time on the clock of that boot. Within one boot that is
exact. A date of another boot means nothing here but itself: it counts from the moment at which this client first saw
it, on its own clock. That is never too early: what is seen has happened.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.clock import NS_PER_US, SYSTEM

_SIGHTS_MAX = 10_000


class Date(NamedTuple):
    """A moment on the clock of one boot; the calendar of that machine beside it is for people."""

    boot: str
    at_us: int
    wall_us: int


class Dates:
    """The dates of other machines that one client has seen, and when."""

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self._seen: dict[object, int] = {}

    def now(self) -> Date:
        return Date(self.boot, SYSTEM.now_ns() // NS_PER_US, SYSTEM.wall_us())

    def here_us(self, date: Date) -> int:
        """That moment on this machine's clock, or the moment at which it was first seen here."""
        if date.boot == self.boot:
            return date.at_us
        return self.first_seen_us((date.boot, date.at_us))

    def first_seen_us(self, what: object) -> int:
        """When this client first met this very thing."""
        seen = self._seen.get(what)
        if seen is None:
            if len(self._seen) >= _SIGHTS_MAX:
                # The oldest half. What is met again counts anew: later than it might, never earlier.
                for old in list(self._seen)[: _SIGHTS_MAX // 2]:
                    self._seen.pop(old, None)
            seen = self._seen.setdefault(what, SYSTEM.now_ns() // NS_PER_US)
        return seen

    def began_us(self, date: Date) -> int:
        """Since when something has been so, for people: of another machine by its calendar, for want of better."""
        if date.boot == self.boot:
            return date.at_us
        now = self.now()
        return now.at_us - max(0, now.wall_us - date.wall_us)
