"""When did who claim what? Events to spans of time.

The rule: a worker claims a name from the moment it learned of its grant until it gave it up, learned of the
loss, died, or trusted it no longer. A renewal that comes after that opens a new claim: in between, the
name was anybody's. A grant learned too late to be trusted opens none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.testing.history import Event


@dataclass(slots=True)
class HoldSpan:
    """One span of time in which one worker took a name for its own."""

    opened: Event
    until_ns: float = field(init=False)
    renewed: Event | None = None
    closed: Event | None = None

    def __post_init__(self) -> None:
        self.until_ns = math.inf if self.opened.until_ns is None else self.opened.until_ns

    @property
    def start_ns(self) -> int:
        return self.opened.at_ns

    @property
    def end_ns(self) -> float:
        return self.until_ns if self.closed is None else min(self.until_ns, self.closed.at_ns)

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(event for event in (self.opened, self.renewed, self.closed) if event is not None)

    def extend(self, event: Event) -> None:
        self.renewed = event
        if event.until_ns is not None:
            self.until_ns = event.until_ns


Who = tuple[str, int]
What = tuple[str, str | None]


@dataclass(slots=True)
class _Held:
    """What one worker claims just now, by name and token. A process may hold ten thousand names."""

    claims: dict[What, HoldSpan] = field(default_factory=dict)

    def concerned(self, event: Event) -> list[What]:
        """An event without a token speaks of all tokens; a death speaks of all names, too."""
        if event.kind == "died":
            return list(self.claims)
        if event.token is not None:
            return [(event.name, event.token)] if (event.name, event.token) in self.claims else []
        return [(name, token) for name, token in self.claims if name == event.name]


def hold_spans_by_name(events: Sequence[Event]) -> dict[str, list[HoldSpan]]:
    """The claims on each name, in the order in which they began."""
    claims: dict[str, list[HoldSpan]] = defaultdict(list)
    workers: dict[Who, _Held] = defaultdict(_Held)
    dead = set()
    for event in sorted(events, key=lambda event: event.at_ns):
        who = (event.worker, event.pid)
        if who in dead:
            # Its death is recorded just before the kill, so it may still have learned of a grant.
            continue
        if event.kind == "died":
            dead.add(who)

        held = workers[who]
        if event.kind in {"granted", "renewed"}:
            renewed = held.concerned(event) if event.kind == "renewed" else []
            for what in renewed or [(event.name, event.token)]:
                claim = held.claims.get(what)
                if claim is not None and event.at_ns <= claim.until_ns:
                    claim.extend(event)
                elif event.until_ns is None or event.at_ns < event.until_ns:
                    held.claims[what] = HoldSpan(event)
                    claims[event.name].append(held.claims[what])
        elif event.kind in {"released", "lost", "died"}:
            for what in held.concerned(event):
                held.claims.pop(what).closed = event
    return claims
