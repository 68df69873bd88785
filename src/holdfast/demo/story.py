"""The recorded history as a story: who does what now, who did what when, and the news.

The rule: it is built from the lines of the history file, as they come. So the view can show nothing that the checkers
will not see at the end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.testing import Event

if TYPE_CHECKING:
    from pathlib import Path

RESTING, WAITING, HOLDING, FROZEN, REFUSED, KILLED = "resting", "waiting", "holding", "frozen", "refused", "killed"
DIRECTOR = "director"
FREEZE, WAKE = "freeze", "wake"

_STATES = {"requested": WAITING, "granted": HOLDING, "released": RESTING, "lost": RESTING, "died": KILLED}


@dataclass(slots=True)
class Figure:
    """One worker as the history knows it: its states, each with the moment at which it began."""

    name: str
    pid: int = 0
    fence: int | None = None
    turns: list[tuple[int, str]] = field(default_factory=list)

    @property
    def state(self) -> str:
        return self.turns[-1][1] if self.turns else RESTING

    @property
    def since_ns(self) -> int:
        return self.turns[-1][0] if self.turns else 0

    def become(self, state: str, at_ns: int) -> None:
        self.turns.append((at_ns, state))


@dataclass(frozen=True, slots=True)
class News:
    """A line for people; `loud` is what the demonstration is about."""

    at_ns: int
    text: str
    loud: bool


class Story:
    """Reads what is new in the history file, and remembers what it means."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self._path = path
        self._offset = 0
        self.figures = {name: Figure(name) for name in names}
        self.events: list[Event] = []
        self.news: list[News] = []
        self.begin_ns = 0
        self.counter = 0
        self._ended: tuple[int, str] | None = None

    def update(self) -> None:
        """Take in what the processes wrote since the last look."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            fresh = file.read()
        end = fresh.rfind(b"\n") + 1
        self._offset += end
        events = [Event(**json.loads(line)) for line in fresh[:end].splitlines()]
        for event in sorted(events, key=lambda event: event.at_ns):
            self._take(event)

    def holder(self) -> Figure | None:
        """Who holds now, as far as the history tells; a frozen one does not count."""
        return next((figure for figure in self.figures.values() if figure.state == HOLDING), None)

    def waiting(self) -> int:
        return sum(figure.state == WAITING for figure in self.figures.values())

    def since_begin_s(self, at_ns: int) -> float:
        return (at_ns - self.begin_ns) / 1e9

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self.begin_ns = self.begin_ns or event.at_ns
        if event.kind == "fault":
            self._fault(event)
        else:
            self._step(self.figures[event.worker], event)

    def _step(self, figure: Figure, event: Event) -> None:
        figure.pid = event.pid
        state = _STATES.get(event.kind)
        if event.kind == "granted":
            self._granted(figure, event)
        elif event.kind == "write" and event.accepted:
            self.counter = event.value or 0
            self._tell(event, f"{figure.name} wrote {event.value} under fence {tail(event.fence)}")
        elif event.kind == "write":
            state = REFUSED
            self._tell(event, f"{figure.name}'s write under fence {tail(event.fence)} was refused: Fenced", loud=True)
        elif event.kind == "lost":
            state = None if figure.state == REFUSED else RESTING  # the refusal stays to be seen
            self._tell(event, f"{figure.name}'s block ended in LeaseLost ({event.detail})", loud=True)
        elif event.kind == "died":
            self._ended = (event.at_ns, "the kill")
            self._tell(event, f"{figure.name} was killed (SIGKILL) holding fence {tail(figure.fence)}", loud=True)
        if state is not None:
            figure.become(state, event.at_ns)

    def _granted(self, figure: Figure, event: Event) -> None:
        figure.fence = event.fence
        if self._ended is None:
            self._tell(event, f"{figure.name} holds under fence {tail(event.fence)}")
            return
        (ended_ns, what), self._ended = self._ended, None
        gap = duration(event.at_ns - ended_ns)
        self._tell(event, f"{figure.name} took over {gap} after {what}, fence {tail(event.fence)}", loud=True)

    def _fault(self, event: Event) -> None:
        what, name = (event.detail or "").split()
        figure = self.figures[name]
        if what == FREEZE:
            self._ended = (event.at_ns, "the freeze")
            figure.become(FROZEN, event.at_ns)
            self._tell(event, f"{name} was frozen (SIGSTOP) holding fence {tail(figure.fence)}", loud=True)
        else:
            figure.become(HOLDING, event.at_ns)
            self._tell(event, f"{name} was woken (SIGCONT) and believes it still holds", loud=True)

    def _tell(self, event: Event, text: str, *, loud: bool = False) -> None:
        self.news.append(News(event.at_ns, text, loud))


def tail(fence: int | None) -> str:
    """The last digits of a fence, which counts microseconds: enough to see that it grows."""
    return "-" if fence is None else f"..{fence % 10**9:09d}"


def duration(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms" if ns < 1e9 else f"{ns / 1e9:.2f} s"
