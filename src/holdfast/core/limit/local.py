"""The local state of a client's rate limits, by name, rates and method.

A program may create the limiter object for every call. The refusals it knows, the counts made without the engine, and
the time of the next attempt to reach the engine belong to the client, so that all these objects share them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import NS, NS_PER_MS, NS_PER_US, jittered
from holdfast.rules.counters import MemoryCounters

if TYPE_CHECKING:
    from holdfast.commands import LimitDecision
    from holdfast.rules.limit import Rates

KNOWN_MAX = 10_000
PAUSE_MAX_NS = NS
_PAUSE_NS = 50 * NS_PER_MS
# A limiter repeats a refusal locally for at most this long, so that it soon notices the reset of a limit.
REPEAT_MAX_NS = NS
# A call to an engine that does not answer ends earlier: it has the wire timeout.
_PROBE_MAX_NS = 10 * NS
# If a client uses more limits than this, the oldest ones lose their local state.
_LIMITS_MAX = 1000


class Refusal(NamedTuple):
    """The last refusal of a key. The limiter repeats it until `repeat_until_ns`, for this cost and higher ones."""

    repeat_until_ns: int
    cost: int
    remaining: int
    limit: int
    retry_ns: int
    reset_ns: int
    window_s: float


class LocalLimit:
    """The local state of one limit: known refusals, and the counts without the engine.

    `trouble`: why the engine could not be reached. While it is set, one caller at a time tries the engine (a probe),
    so that an engine that does not answer delays this one caller only.
    """

    def __init__(self) -> None:
        self.refusals: dict[str, Refusal] = {}
        self.counters = MemoryCounters()
        self.guard = threading.RLock()  # a signal handler may hit the limit that its own thread is in
        self.trouble = ""
        self._retry_engine_ns = 0
        self._probe_ns = 0  # when the present probe was sent
        self._pause_ns = 0

    def remember_refusal(self, key: str, cost: int, answer: LimitDecision, sent_ns: int) -> None:
        """Remember a refusal. The engine refused after the request was sent, so count its time from then."""
        if len(self.refusals) >= KNOWN_MAX:
            self.refusals.clear()
        retry_ns = sent_ns + answer.retry_us * NS_PER_US
        repeat_until_ns = min(retry_ns, sent_ns + REPEAT_MAX_NS)
        reset_ns = sent_ns + answer.reset_us * NS_PER_US
        window_s = answer.period_us / 1e6
        self.refusals[key] = Refusal(
            repeat_until_ns, cost, answer.remaining, answer.limit, retry_ns, reset_ns, window_s
        )

    def may_probe(self, now_ns: int) -> bool:
        """Return whether this caller tries the engine now; the other callers follow the policy meanwhile."""
        with self.guard:
            if now_ns < self._retry_engine_ns:
                return False
            # The bound ends the probe of a thread that died inside the call.
            self._probe_ns, self._retry_engine_ns = now_ns, now_ns + _PROBE_MAX_NS
            return True

    def probe_ended(self, sent_ns: int) -> None:
        """End the probe that was sent at `sent_ns`, without a result."""
        with self.guard:
            if self._probe_ns == sent_ns:
                self._retry_engine_ns = 0

    def failed(self, trouble: str, sent_ns: int, now_ns: int) -> None:
        """Remember that the engine is unavailable; pause longer after each probe before the next one.

        Several calls may be on their way when an outage begins; they count as one.
        """
        with self.guard:
            if not self.trouble or self._probe_ns == sent_ns:
                self._pause_ns = min(2 * self._pause_ns or _PAUSE_NS, PAUSE_MAX_NS)
                self._retry_engine_ns = now_ns + jittered(self._pause_ns, now_ns)
            self.trouble = trouble or "no reason given"

    def answered(self) -> None:
        """Remember that the engine answered."""
        with self.guard:
            self._pause_ns = self._retry_engine_ns = 0
            self.trouble = ""


class LocalLimits:
    """The local states of all limits of one client."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[tuple[str, Rates, bool], LocalLimit] = {}

    def get(self, name: str, rates: Rates, *, smooth: bool) -> LocalLimit:
        """Return the local state of this limit; create it at the first use."""
        key = (name, rates, smooth)
        with self._guard:
            local = self._known.pop(key, None) or LocalLimit()
            self._known[key] = local
            if len(self._known) > _LIMITS_MAX:
                del self._known[next(iter(self._known))]
        return local
