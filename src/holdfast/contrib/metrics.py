"""The parts that all metrics observers share: their counters, families of names, open leases, and the smallest margin.

Users choose names, and the number of names has no bound; a time series per name would not have one either. So metrics
count by family: the part of a name before the first slash or colon. The number of families is limited, and the rest is
`other`.

A counter has the name of its event, except `contended`, which counts the event `waiting`.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from holdfast.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.observer import Event

FAMILIES_MAX = 50
OTHER = "other"
# `LeastMargin` forgets a margin after one to two windows of this length.
_WINDOW_S = 300.0

SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)
# Why leases are lost: see docs/errors.md.
REASONS = ("expired", "broken", "closed", "replaced", "forked")


class CounterSpec(NamedTuple):
    """One counter: its name, the unit that OpenTelemetry shows, and its description."""

    name: str
    unit: str
    description: str


COUNTERS = (
    CounterSpec("contended", "{wait}", "Acquisitions that had to wait for another holder"),
    CounterSpec("renewed_late", "{renewal}", "Renewals with less than a third of the ttl left"),
    CounterSpec("renewal_failed", "{renewal}", "Renewals that did not reach the engine; the keeper repeats them"),
    CounterSpec("release_delayed", "{release}", "Releases that did not reach the engine at once"),
    CounterSpec("fenced", "{write}", "Guarded writes that were refused because a newer holder had written"),
    CounterSpec("unavailable", "{time}", "Commands that failed because the engine could not be used"),
    CounterSpec("abandoned", "{lease}", "Leases that a program dropped without a release"),
    CounterSpec("delivery_abandoned", "{command}", "Releases that never reached the engine; the lease expired instead"),
    CounterSpec("duplicate", "{call}", "Calls with an idempotency key whose work had been done before"),
    CounterSpec("rate_limited", "{call}", "Calls that a rate limit or a budget refused"),
    CounterSpec("handler_failed", "{attempt}", "Attempts at a message that failed in this process"),
    CounterSpec("dead_lettered", "{message}", "Messages that became dead letters in this process"),
    CounterSpec("reclaimed", "{check}", "Checks of this process that found expired consumers"),
    CounterSpec("reclaim_postponed", "{check}", "Checks for expired consumers that came too late to judge them"),
    CounterSpec("expiry_event", "{event}", "Expiry events of other owners that the server sent"),
    CounterSpec("events_dropped", "{time}", "Times that a slow reader or a blocked observer had no room for events"),
)
_RENAMED = {"waiting": "contended"}
# The counters of each event. A failed renewal also counts as an unavailable engine: in a process that only holds
# leases, renewals are the only commands.
COUNTED = {
    **{spec.name: (spec.name,) for spec in COUNTERS if spec.name not in _RENAMED.values()},
    **{event: (name,) for event, name in _RENAMED.items()},
    "renewal_failed": ("renewal_failed", "unavailable"),
}
# The outcomes of a wait, and of a hold: of leases, and of the keys of a queue.
WAITS = ("granted", "refused", "assigned")
HOLDS = ("released", "lost", "unassigned")
# Events of the engine, which belong to no lease and have no family.
ENGINE_EVENTS = (
    "promise_changed",
    "clock_jumped",
    "engine_restarted",
    "events_subscribed",
    "events_missing",
    "setting_changed",
)
LEASE_ENDS = ("released", "lost", "abandoned", "release_delayed", "undone", "delivery_abandoned")
ASSIGNMENT_ENDS = ("unassigned", "lost")


def first_part(name: str) -> str:
    """Return the default family of a name: `orders` for `orders/42` and for `orders:42`."""
    return re.split("[/:]", name, maxsplit=1)[0]


class Families:
    """Maps names to families, and limits the number of families.

    `family`: returns the family of a name; `most`: the largest number of families.
    """

    def __init__(self, family: Callable[[str], str] = first_part, most: int = FAMILIES_MAX) -> None:
        self._family = family
        self._most = most
        self._known: set[str] = set()
        self._begun: set[str] = set()

    def of(self, name: str) -> str:
        """Return the family of the name, or `other` if there are too many."""
        family = plain(self._family(name))
        if family not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(family)
        return family

    def begins(self, family: str) -> bool:
        """Return whether this is the first event of the family: then all its counters start, at 0.

        `increase()` of a time series that starts with its first loss is 0, so the first loss would be invisible.
        """
        if family in self._begun:
            return False
        self._begun.add(family)
        return True


class OpenLeases:
    """The leases, or the assigned keys, that are held now, by name and fence; a second end event changes nothing."""

    def __init__(self, begin: str = "granted", ends: tuple[str, ...] = LEASE_ENDS) -> None:
        self._begin, self._ends = begin, ends
        self._leases: set[tuple[str, int | None]] = set()

    def follow(self, event: Event) -> int:
        """Return by how much the event changes the number of open leases: +1, -1 or 0."""
        lease = (event.name, event.fence)
        if event.kind == self._begin:
            self._leases.add(lease)
            return 1
        if event.kind in self._ends and lease in self._leases:
            self._leases.discard(lease)
            return -1
        return 0


class _Window(NamedTuple):
    number: int
    least: float


class LeastMargin:
    """The smallest margin of the last few minutes: how close the nearest loss was."""

    def __init__(self, window_s: float = _WINDOW_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: list[_Window] = []

    def add(self, seconds: float) -> None:
        """Record the margin of one renewal."""
        with self._lock:
            windows = self._recent()
            if windows and windows[-1].number == self._now():
                windows[-1] = windows[-1]._replace(least=min(windows[-1].least, seconds))
            else:
                windows.append(_Window(self._now(), seconds))
            self._windows = windows

    def value(self) -> float:
        """Return the smallest margin, or NaN without a recent renewal."""
        with self._lock:
            return min((window.least for window in self._recent()), default=float("nan"))

    def _now(self) -> int:
        return int(self._clock() / self._window_s)

    def _recent(self) -> list[_Window]:
        return [window for window in self._windows if window.number >= self._now() - 1]


def reason_of(event: Event) -> str:
    """Return why a lease was lost: the first word of the detail, if it is a known reason."""
    word = event.detail.split(" ", 1)[0] or "unknown"
    return word if word in (*REASONS, "unknown") else OTHER
