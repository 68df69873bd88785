"""The view: a redrawn table with a moving timeline on a terminal, plain lines elsewhere, nothing for programs.

The rule: the view restores the terminal and leaves the last picture on it. Colour only helps: every state also has its
own sign, and the view obeys `NO_COLOR`.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from typing import TYPE_CHECKING, Protocol, TextIO

from holdfast.demo.narration import FROZEN, HOLDING, KILLED, REFUSED, RESTING, WAITING, tail

if TYPE_CHECKING:
    from holdfast.demo.narration import Narration, WorkerHistory

_FRAME_S = 0.06
_CELL_NS = 200_000_000
_CELL_STEP_NS = 50_000_000
_WIDEST = 120
_NAMES_WIDTH = 37
_NEWS_LINES = 8

# If several states fall into one cell, the view shows the one that is later in this order.
_ORDER = (RESTING, WAITING, HOLDING, FROZEN, REFUSED, KILLED)
_SIGNS = {RESTING: " ", WAITING: "·", HOLDING: "█", FROZEN: "▒", REFUSED: "!", KILLED: "x"}
_ASCII = {RESTING: " ", WAITING: ".", HOLDING: "#", FROZEN: "~", REFUSED: "!", KILLED: "x"}
_COLOURS = {RESTING: "2", WAITING: "33", HOLDING: "32", FROZEN: "36", REFUSED: "1;31", KILLED: "1;31"}


class View(Protocol):
    """Shows the demonstration."""

    def begin_step(self, title: str) -> None:
        """Begin a new step."""

    def show(self, narration: Narration) -> None:
        """Show the present state; called often."""

    def end(self, narration: Narration) -> None:
        """Show the last picture."""

    def restore(self) -> None:
        """Restore the terminal, however the demonstration ended."""


class SilentView:
    """Shows nothing: programs get the summary only."""

    def begin_step(self, title: str) -> None:
        pass

    def show(self, narration: Narration) -> None:
        pass

    def end(self, narration: Narration) -> None:
        pass

    def restore(self) -> None:
        pass


class LineView(SilentView):
    """Prints one line for each event."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._printed = 0

    def begin_step(self, title: str) -> None:
        self._out.write(f"-- {title}\n")
        self._out.flush()

    def show(self, narration: Narration) -> None:
        for news in narration.news[self._printed :]:
            self._out.write(f"{narration.since_begin_s(news.at_ns):7.3f} s  {'*' if news.major else ' '} {news.text}\n")
        self._printed = len(narration.news)
        self._out.flush()

    def end(self, narration: Narration) -> None:
        self.show(narration)
        self._out.write("\n")


class ScreenView:
    """Redraws a table in its place."""

    def __init__(self, out: TextIO, heading: str) -> None:
        self._out = out
        self._heading = heading
        self._step = ""
        self._height = 0
        self._drawn = 0.0
        self._colour = not os.environ.get("NO_COLOR")
        self._signs = _SIGNS if "utf" in (out.encoding or "").lower() else _ASCII
        out.write("\x1b[?25l")  # hide the cursor, which would jump

    def begin_step(self, title: str) -> None:
        self._step = title
        self._drawn = 0.0

    def show(self, narration: Narration) -> None:
        if time.monotonic() - self._drawn >= _FRAME_S:
            self._draw(narration, time.monotonic_ns(), _CELL_NS)

    def end(self, narration: Narration) -> None:
        """Draw the whole run, one line for each worker."""
        self._step = "the whole run"
        end_ns = narration.events[-1].at_ns if narration.events else time.monotonic_ns()
        fitting_ns = (end_ns - narration.begin_ns) / self._cells()
        self._draw(narration, end_ns, math.ceil((fitting_ns + 1) / _CELL_STEP_NS) * _CELL_STEP_NS)
        self._out.write("\n")

    def restore(self) -> None:
        self._out.write("\x1b[?25h")
        self._out.flush()

    def _draw(self, narration: Narration, now_ns: int, cell_ns: int) -> None:
        columns, rows = shutil.get_terminal_size()
        lines = self._picture(narration, now_ns, cell_ns)[: max(1, rows - 1)]
        lines += [""] * (min(self._height, max(1, rows - 1)) - len(lines))
        up = f"\x1b[{self._height}A" if self._height else ""
        text = "".join(f"\r{_cut(line, columns - 1)}\x1b[K\n" for line in lines)
        self._out.write(up + text)
        self._out.flush()
        self._height = len(lines)
        self._drawn = time.monotonic()

    def _picture(self, narration: Narration, now_ns: int, cell_ns: int) -> list[str]:
        now_s = max(0.0, narration.since_begin_s(now_ns)) if narration.begin_ns else 0.0
        clock = f"{now_s:5.1f} s"
        lines = [
            self._painted("1", self._heading),
            f"{clock}   counter {narration.counter:<4} {self._painted('1', self._step)}",
            "",
            *(self._row(worker, narration, now_ns, cell_ns) for worker in narration.workers.values()),
            self._painted("2", self._legend(cell_ns)),
            "",
        ]
        major = [news for news in narration.news if news.major][-_NEWS_LINES:]
        lines += [f"{narration.since_begin_s(news.at_ns):7.3f} s  {news.text}" for news in major]
        return lines + [""] * (_NEWS_LINES - len(major))

    def _row(self, worker: WorkerHistory, narration: Narration, now_ns: int, cell_ns: int) -> str:
        fence = tail(worker.fence)
        state = self._painted(_COLOURS[worker.state], f"{worker.state:<8}")
        bar = "".join(
            self._painted(_COLOURS[state], self._signs[state] * count)
            for state, count in _runs(self._bar(worker, narration, now_ns, cell_ns))
        )
        return f"{worker.name:<5} {worker.pid or '':>7}  {state} {fence:<11} {bar}"

    def _bar(self, worker: WorkerHistory, narration: Narration, now_ns: int, cell_ns: int) -> list[str]:
        """Return the states of the last cells; the cells are on a fixed grid, so that the bar moves without flicker."""
        last = (now_ns - narration.begin_ns) // cell_ns if narration.begin_ns else 0
        cells = range(max(0, last - self._cells() + 1), last + 1)
        return [_state_in(worker, narration.begin_ns + cell * cell_ns, cell_ns) for cell in cells]

    def _cells(self) -> int:
        return max(10, min(_WIDEST, shutil.get_terminal_size().columns) - _NAMES_WIDTH)

    def _legend(self, cell_ns: int) -> str:
        signs = "  ".join(f"{self._signs[state]} {state}" for state in _ORDER[1:])
        return f"      {signs}   1 sign = {cell_ns // 1_000_000} ms"

    def _painted(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and text.strip() else text


def view_for(out: TextIO, heading: str, *, silent: bool) -> View:
    """Return the view that fits the output stream."""
    if silent:
        return SilentView()
    if out.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return ScreenView(out, heading)
    out.write(f"{heading}\n")
    return LineView(out)


def _state_in(worker: WorkerHistory, start_ns: int, cell_ns: int) -> str:
    """Return the most important state of the worker in this cell; a death or refusal counts in one cell only."""
    before, inside = RESTING, []
    for at_ns, state in worker.turns:
        if at_ns < start_ns:
            before = state
        elif at_ns < start_ns + cell_ns:
            inside.append(state)
        else:
            break
    quiet = before in {KILLED, REFUSED}
    return max([RESTING if quiet else before, *inside], key=_ORDER.index)


def _runs(states: list[str]) -> list[tuple[str, int]]:
    runs: list[tuple[str, int]] = []
    for state in states:
        if runs and runs[-1][0] == state:
            runs[-1] = (state, runs[-1][1] + 1)
        else:
            runs.append((state, 1))
    return runs


def _cut(line: str, width: int) -> str:
    """Return the line cut at the width; colour codes take no room."""
    shown, out, index = 0, [], 0
    while index < len(line) and (shown < width or line[index] == "\x1b"):
        if line[index] == "\x1b":
            end = line.index("m", index) + 1
            out.append(line[index:end])
            index = end
        else:
            out.append(line[index])
            shown, index = shown + 1, index + 1
    return "".join(out) + ("\x1b[0m" if "\x1b" in line else "")
