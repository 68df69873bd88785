"""The recorded history for people: the state of each worker, its past states, and lines of news.

The rule: the narration reads the lines of the history file as they come. So the view can show nothing that the checkers
will not see at the end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.testing import HistoryEvent

if TYPE_CHECKING:
    from pathlib import Path

RESTING, WAITING, HOLDING, FROZEN, REFUSED, KILLED = "resting", "waiting", "holding", "frozen", "refused", "killed"
SCENARIO = "scenario"
FREEZE, WAKE = "freeze", "wake"

_STATES = {"requested": WAITING, "granted": HOLDING, "released": RESTING, "lost": RESTING, "died": KILLED}


@dataclass(slots=True)
class WorkerHistory:
    """One worker in the history: its states, each with the time at which it began."""

    name: str
    pid: int = 0
    fence: int | None = None
    turns: list[tuple[int, str]] = field(default_factory=list)

    @property
    def state(self) -> str:
        """The present state."""
        return self.turns[-1][1] if self.turns else RESTING

    @property
    def since_ns(self) -> int:
        """When the present state began."""
        return self.turns[-1][0] if self.turns else 0

    def become(self, state: str, at_ns: int) -> None:
        """Begin a new state."""
        self.turns.append((at_ns, state))


@dataclass(frozen=True, slots=True)
class NewsLine:
    """A line for people; `major` lines are faults and their effects."""

    at_ns: int
    text: str
    major: bool


class Narration:
    """Reads new lines of the history file, and keeps the states and the news."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self._path = path
        self._offset = 0
        self.workers = {name: WorkerHistory(name) for name in names}
        self.events: list[HistoryEvent] = []
        self.news: list[NewsLine] = []
        self.begin_ns = 0
        self.counter = 0
        self._ended: tuple[int, str] | None = None

    def update(self) -> None:
        """Read the events that the processes wrote since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            fresh = file.read()
        end = fresh.rfind(b"\n") + 1
        self._offset += end
        events = [HistoryEvent(**json.loads(line)) for line in fresh[:end].splitlines()]
        for event in sorted(events, key=lambda event: event.at_ns):
            self._take(event)

    def holder(self) -> WorkerHistory | None:
        """Return the holder according to the history; a frozen worker does not count."""
        return next((worker for worker in self.workers.values() if worker.state == HOLDING), None)

    def waiting(self) -> int:
        """Return how many workers wait."""
        return sum(worker.state == WAITING for worker in self.workers.values())

    def since_begin_s(self, at_ns: int) -> float:
        """Return the seconds since the first event."""
        return (at_ns - self.begin_ns) / 1e9

    def _take(self, event: HistoryEvent) -> None:
        self.events.append(event)
        self.begin_ns = self.begin_ns or event.at_ns
        if event.kind == "fault":
            self._fault(event)
        else:
            self._step(self.workers[event.worker], event)

    def _step(self, worker: WorkerHistory, event: HistoryEvent) -> None:
        worker.pid = event.pid
        state = _STATES.get(event.kind)
        if event.kind == "granted":
            self._granted(worker, event)
        elif event.kind == "write" and event.accepted:
            self.counter = event.value or 0
            self._add_news(event, f"{worker.name} wrote {event.value} under fence {tail(event.fence)}")
        elif event.kind == "write":
            state = REFUSED
            self._add_news(
                event, f"{worker.name}'s write under fence {tail(event.fence)} was refused: Fenced", major=True
            )
        elif event.kind == "lost":
            state = None if worker.state == REFUSED else RESTING  # the view still shows the refusal
            self._add_news(event, f"{worker.name}'s block ended in LeaseLost ({event.detail})", major=True)
        elif event.kind == "died":
            self._ended = (event.at_ns, "the kill")
            self._add_news(event, f"{worker.name} was killed (SIGKILL) holding fence {tail(worker.fence)}", major=True)
        if state is not None:
            worker.become(state, event.at_ns)

    def _granted(self, worker: WorkerHistory, event: HistoryEvent) -> None:
        worker.fence = event.fence
        if self._ended is None:
            self._add_news(event, f"{worker.name} holds under fence {tail(event.fence)}")
            return
        (ended_ns, what), self._ended = self._ended, None
        gap = duration(event.at_ns - ended_ns)
        self._add_news(event, f"{worker.name} took over {gap} after {what}, fence {tail(event.fence)}", major=True)

    def _fault(self, event: HistoryEvent) -> None:
        what, name = (event.detail or "").split()
        worker = self.workers[name]
        if what == FREEZE:
            self._ended = (event.at_ns, "the freeze")
            worker.become(FROZEN, event.at_ns)
            self._add_news(event, f"{name} was frozen (SIGSTOP) holding fence {tail(worker.fence)}", major=True)
        else:
            worker.become(HOLDING, event.at_ns)
            self._add_news(event, f"{name} was woken (SIGCONT) and believes it still holds", major=True)

    def _add_news(self, event: HistoryEvent, text: str, *, major: bool = False) -> None:
        self.news.append(NewsLine(event.at_ns, text, major))


def tail(fence: int | None) -> str:
    """Return the last digits of a fence, which counts microseconds: enough to see that it grows."""
    return "-" if fence is None else f"..{fence % 10**9:09d}"


def duration(ns: int) -> str:
    """Return a duration for people."""
    return f"{ns / 1e6:.1f} ms" if ns < 1e9 else f"{ns / 1e9:.2f} s"
