"""Turn the events of a history into the spans of time in which workers held names.

A worker holds a name from the moment it learned of its grant until it released the name, learned of the loss, died, or
no longer trusted its lease. A renewal after that moment opens a new span: in between, any worker may have held the
name. A grant that a worker learned of too late to trust opens no span.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.testing.history import HistoryEvent


@dataclass(slots=True)
class HoldSpan:
    """One span of time in which one worker believed that it held a name."""

    opened: HistoryEvent
    until_ns: float = field(init=False)
    renewed: HistoryEvent | None = None
    closed: HistoryEvent | None = None

    def __post_init__(self) -> None:
        self.until_ns = math.inf if self.opened.until_ns is None else self.opened.until_ns

    @property
    def start_ns(self) -> int:
        return self.opened.at_ns

    @property
    def end_ns(self) -> float:
        return self.until_ns if self.closed is None else min(self.until_ns, self.closed.at_ns)

    @property
    def events(self) -> tuple[HistoryEvent, ...]:
        """The events that make up the span."""
        return tuple(event for event in (self.opened, self.renewed, self.closed) if event is not None)

    def extend(self, event: HistoryEvent) -> None:
        """Add a renewal."""
        self.renewed = event
        if event.until_ns is not None:
            self.until_ns = event.until_ns


_Key = tuple[str, str | None]  # name and token


@dataclass(slots=True)
class _OpenSpans:
    """The open spans of one worker by name and token. A process may hold ten thousand names."""

    spans: dict[_Key, HoldSpan] = field(default_factory=dict)

    def concerned(self, event: HistoryEvent) -> list[_Key]:
        """Return the keys that an event is about: without a token, all tokens of its name; after a death, all keys."""
        if event.kind == "died":
            return list(self.spans)
        if event.token is not None:
            return [(event.name, event.token)] if (event.name, event.token) in self.spans else []
        return [(name, token) for name, token in self.spans if name == event.name]


def hold_spans_by_name(events: Sequence[HistoryEvent]) -> dict[str, list[HoldSpan]]:
    """Return the spans of each name, in the order in which they began."""
    spans: dict[str, list[HoldSpan]] = defaultdict(list)
    workers: dict[tuple[str, int], _OpenSpans] = defaultdict(_OpenSpans)
    dead = set()
    for event in sorted(events, key=lambda event: event.at_ns):
        worker = (event.worker, event.pid)
        if worker in dead:
            # The test records a death just before the kill, so the worker may still have learned of a grant.
            continue
        if event.kind == "died":
            dead.add(worker)

        held = workers[worker]
        if event.kind in {"granted", "renewed"}:
            renewed = held.concerned(event) if event.kind == "renewed" else []
            for key in renewed or [(event.name, event.token)]:
                span = held.spans.get(key)
                if span is not None and event.at_ns <= span.until_ns:
                    span.extend(event)
                elif event.until_ns is None or event.at_ns < event.until_ns:
                    held.spans[key] = HoldSpan(event)
                    spans[event.name].append(held.spans[key])
        elif event.kind in {"released", "lost", "died"}:
            for key in held.concerned(event):
                held.spans.pop(key).closed = event
    return spans
