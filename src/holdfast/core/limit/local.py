"""What a client knows of its limits, each by its name, its rates and its way to count.

A limit may be made anew for every call, and is the same limit: what was refused, what was admitted without the engine,
and when the engine is asked again belong to the client, not to the object.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import NS, NS_PER_MS, NS_PER_US, jittered
from holdfast.rules.memory_counters import MemoryCounters

if TYPE_CHECKING:
    from holdfast.commands import LimitDecision
    from holdfast.rules.limit import Rates

KNOWN_MAX = 10_000
PAUSE_MAX_NS = NS
_PAUSE_NS = 50 * NS_PER_MS
# A refusal is not believed for longer, so that a limit that was reset by hand is seen soon.
BELIEVED_NS = NS
# Of more limits, those that were made longest ago begin anew.
_LIMITS_MAX = 1000


class Refusal(NamedTuple):
    """What a key was told last: believed until then, for this cost and more."""

    believed_ns: int
    cost: int
    remaining: int
    limit: int
    retry_ns: int
    reset_ns: int


class Ledger:
    """One limit: the refusals that hold, and what is done without the engine. `trouble`: why it was not asked."""

    def __init__(self) -> None:
        self.refusals: dict[str, Refusal] = {}
        self.alone = MemoryCounters()
        self.guard = threading.Lock()
        self.asked_again_ns = 0
        self.trouble = ""
        self._pause_ns = 0

    def believe(self, key: str, cost: int, answer: LimitDecision, sent_ns: int) -> None:
        """It was refused after it was sent, so it holds at least as long from then."""
        if len(self.refusals) >= KNOWN_MAX:
            self.refusals.clear()
        retry_ns = sent_ns + answer.retry_us * NS_PER_US
        believed_ns = min(retry_ns, sent_ns + BELIEVED_NS)
        reset_ns = sent_ns + answer.reset_us * NS_PER_US
        self.refusals[key] = Refusal(believed_ns, cost, answer.remaining, answer.limit, retry_ns, reset_ns)

    def failed(self, trouble: str, now_ns: int) -> None:
        """The engine could not be asked; it is asked ever less often."""
        self._pause_ns = min(2 * self._pause_ns or _PAUSE_NS, PAUSE_MAX_NS)
        self.asked_again_ns = now_ns + jittered(self._pause_ns, now_ns)
        self.trouble = trouble

    def answered(self) -> None:
        self._pause_ns = 0
        self.trouble = ""


class Ledgers:
    """Those of one client."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[tuple[str, Rates, bool], Ledger] = {}

    def of(self, name: str, rates: Rates, *, smooth: bool) -> Ledger:
        """The one of this limit, whoever made it first."""
        key = (name, rates, smooth)
        with self._guard:
            ledger = self._known.pop(key, None) or Ledger()
            self._known[key] = ledger
            if len(self._known) > _LIMITS_MAX:
                del self._known[next(iter(self._known))]
        return ledger
