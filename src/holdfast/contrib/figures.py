"""What all figures have in common: which family a name belongs to, which leases are held, which margin was smallest.

Names are chosen by users and have no bound; a figure per name would end in millions of them. So names are counted by
family: what stands before the first slash or colon, and only so many families, the rest being `other`.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.observer import Event

FAMILIES_MAX = 50
OTHER = "other"
# A margin that was small is of interest for a while, and forgotten after one to two of these.
_WINDOW_S = 300.0

SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)
# Why leases are lost: see docs/errors.md.
REASONS = ("expired", "broken", "closed", "replaced", "forked")
# What each event is counted as. A renewal that failed tells of an engine that could not be used, like any other
# question; holders may be the only ones who ask.
COUNTED = {
    "waiting": ("contended",),
    "renewed_late": ("renewed_late",),
    "renewal_failed": ("renewals_failed", "unavailable"),
    "release_delayed": ("releases_delayed",),
    "delivery_abandoned": ("given_up",),
    "fenced": ("fenced",),
    "unavailable": ("unavailable",),
    "abandoned": ("abandoned",),
    "duplicate": ("duplicate",),
    "rate_limited": ("rate_limited",),
    "handler_failed": ("messages_failed",),
    "dead_lettered": ("messages_buried",),
    "reclaimed": ("reapings",),
    "reclaim_postponed": ("amnesties",),
    "expiry_event": ("ends_heard",),
    "events_dropped": ("news_dropped",),
}
# How long somebody waited, or had something, by how that ended.
WAITS = ("granted", "refused", "assigned")
HOLDS = ("released", "lost", "unassigned")
# What is told of the engine and of no lease: it has no family.
NEWS = (
    "promise_changed",
    "clock_jumped",
    "engine_restarted",
    "events_subscribed",
    "events_missing",
    "setting_changed",
)
ENDS = ("released", "lost", "abandoned", "release_delayed", "undone", "delivery_abandoned")
DISOWNED = ("unassigned", "lost")


def first_part(name: str) -> str:
    """The family of a name, unless the user knows better: `orders` for `orders/42` and for `orders:42`."""
    return re.split("[/:]", name, maxsplit=1)[0]


class Families:
    """At most so many of them, however many names there are."""

    def __init__(self, family: Callable[[str], str] = first_part, most: int = FAMILIES_MAX) -> None:
        self._family = family
        self._most = most
        self._known: set[str] = set()
        self._begun: set[str] = set()

    def of(self, name: str) -> str:
        family = self._family(name)
        if family not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(family)
        return family

    def begins(self, family: str) -> bool:
        """Whether it is the first that is heard of the family: then all its counts begin, at 0.

        A count that appears with its first loss has not grown, for whoever asks by how much it has.
        """
        if family in self._begun:
            return False
        self._begun.add(family)
        return True


class Held:
    """Which leases are held, by name and fence, however often an end is told; or which keys of queues are owned."""

    def __init__(self, begin: str = "granted", ends: tuple[str, ...] = ENDS) -> None:
        self._begin, self._ends = begin, ends
        self._leases: set[tuple[str, int | None]] = set()

    def follow(self, event: Event) -> int:
        """+1, -1 or 0: by how much the number of held leases has changed."""
        lease = (event.name, event.fence)
        if event.kind == self._begin:
            self._leases.add(lease)
            return 1
        if event.kind in self._ends and lease in self._leases:
            self._leases.discard(lease)
            return -1
        return 0


class _Part(NamedTuple):
    number: int
    least: float


class LeastMargin:
    """The smallest margin of the last few minutes: how close the nearest loss was."""

    def __init__(self, window_s: float = _WINDOW_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._guard = threading.Lock()
        self._parts: list[_Part] = []

    def note(self, seconds: float) -> None:
        with self._guard:
            parts = self._recent()
            if parts and parts[-1].number == self._now():
                parts[-1] = parts[-1]._replace(least=min(parts[-1].least, seconds))
            else:
                parts.append(_Part(self._now(), seconds))
            self._parts = parts

    def value(self) -> float:
        """NaN if nothing was renewed lately."""
        with self._guard:
            return min((part.least for part in self._recent()), default=float("nan"))

    def _now(self) -> int:
        return int(self._clock() / self._window_s)

    def _recent(self) -> list[_Part]:
        return [part for part in self._parts if part.number >= self._now() - 1]


def reason_of(event: Event) -> str:
    """Why a lease was lost, in a word."""
    return event.detail.split(" ", 1)[0] or "unknown"
