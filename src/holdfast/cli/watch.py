"""`holdfast watch`: show the leases again and again until the user ends the command.

However the command ends, it restores the terminal. An engine that does not answer for a while does not end the command,
because that is when people watch.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Group
from rich.live import Live

from holdfast.cli import codes, lease, output, pool_like
from holdfast.cli.connect import CLOSE_S, connect
from holdfast.cli.options import All, Interval, Limit, Prefix, Url
from holdfast.cli.output import plain
from holdfast.cli.signals import exit_on_signals
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from holdfast.blocking import Holdfast

# Above the names: the heading, an empty line, the titles. Below: how many more there are.
_LINES_AROUND = 4
# Pool-like names come below, after an empty line and titles, and take a third of the height at most.
_LINES_BETWEEN = 2
_PART = 3


class Snapshot(NamedTuple):
    """The names at one moment; or, while the engine does not answer, the `error`, and `since`: when it began."""

    names: list[lease.NameView]
    others: list[pool_like.PoolLike]
    more: bool
    error: str = ""
    since: float = 0.0


class Watch:
    """Takes one snapshot after the other. Only the first may fail: then there is nothing to watch."""

    def __init__(self, hf: Holdfast, prefix: str, *, limit: int, every: bool) -> None:
        self._url = hf.url
        self._leases = lease.LeaseSurvey(hf, prefix, limit=limit, every=every)
        self._others = pool_like.PoolLikeSurvey(hf, prefix, limit=limit, every=every, pause=lease.SCAN_PAUSE)
        self._last: Snapshot | None = None

    def look(self) -> Snapshot:
        """Query the engine and return a snapshot."""
        try:
            names, others = self._leases.look(), self._others.look()
        except Unavailable as error:
            if self._last is None:
                raise
            since = self._last.since if self._last.error else time.time()
            self._last = Snapshot([], [], more=True, error=str(error), since=since)
        else:
            self._last = Snapshot(names, others, self._leases.more or self._others.more)
        return self._last

    def as_json(self) -> dict[str, object]:
        """Return a snapshot for programs.

        While the engine does not answer, it has an `error`, and `more` is true: an empty list must not look like
        free names.
        """
        now = self.look()
        names, others = [each.as_json() for each in now.names], [each.as_json() for each in now.others]
        line = {"at": time.time(), "names": names, "pool_like": others, "more": now.more}
        return {**line, "error": now.error, "since": now.since} if now.error else line

    def picture(self, console: Console) -> RenderableType:
        """Return a snapshot for people: names with the most waiters first, then those held for longest."""
        now = self.look()
        at, where = time.strftime("%H:%M:%S"), plain(self._url)
        if now.error:
            since = time.strftime("%H:%M:%S", time.localtime(now.since))
            return Group(output.text(f"{at}  unreachable since {since}: {now.error}"))
        waiting = sum(len(each.info.waiters) for each in now.names)
        waiting += sum(each.snapshot.waiting for each in now.others)
        held = sum(1 for each in now.names if each.info.holder is not None)
        lent = f", {sum(each.snapshot.lent for each in now.others)} items and permits taken" if now.others else ""
        more = ", and more names than are shown" if now.more else ""
        rows = sorted(now.names, key=_urgency)
        others = sorted(now.others, key=lambda each: -each.snapshot.waiting)
        lines, below = _heights(len(rows), len(others), console.height - _LINES_AROUND if console.is_terminal else None)
        # Print the figures first: the console cuts the end of a line that does not fit, and a URL may be long.
        head = f"{at}  {held} held{lent}, {waiting} waiting{more}  {where}"
        parts: list[RenderableType] = [output.text(head), ""]
        if rows or not others:
            parts.append(lease.table(rows[:lines], console.width))
        if others:
            shown = pool_like.table(others[:below])
            parts += ["", shown] if rows else [shown]
        left = max(0, len(rows) - lines) + max(0, len(others) - below)
        return Group(*parts, *([f"… {left} more"] if left else []))


def _heights(names: int, others: int, height: int | None) -> tuple[int, int]:
    """Return how many lines the leases get, and how many the pool-like names; `None` is an unlimited height."""
    if height is None:
        return names, others
    below = min(others, max(1, height // _PART if names else height))
    taken = below + _LINES_BETWEEN if others and names else 0
    return max(1, height - taken), below


def watch(
    prefix: Prefix = "",
    url: Url = None,
    interval: Interval = 1.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of queries.", show_default="never")
    ] = None,
    every: All = False,
    limit: Limit = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per query.")] = False,
) -> int:
    """Show the leases live, like top. Ctrl-C ends it.

    \b
    Example:
      holdfast watch orders/ --interval 0.5
    """
    hf = connect(url)
    try:
        with exit_on_signals():
            watched = Watch(hf, prefix, limit=limit, every=every)
            console = output.console()
            if as_json or not console.is_terminal:
                _print(watched, console, interval=interval, count=count, as_json=as_json)
            else:
                _draw(watched, console, interval=interval, count=count)
    except KeyboardInterrupt:
        pass  # the usual way to end the command
    finally:
        hf.close(CLOSE_S)
    return codes.OK


def _print(watched: Watch, console: Console, *, interval: float, count: int | None, as_json: bool) -> None:
    printed = 0
    while True:
        if as_json:
            output.print_json(watched.as_json(), indent=None)
        else:
            console.print(watched.picture(console))
            sys.stdout.flush()
        printed += 1
        if printed == count:
            return
        time.sleep(interval)


def _draw(watched: Watch, console: Console, *, interval: float, count: int | None) -> None:
    drawn = 0
    live = Live(watched.picture(console), console=console, screen=True, auto_refresh=False)
    try:  # not `with`: a signal may come while `start` draws the first picture
        live.start(refresh=True)
        while True:
            drawn += 1
            if drawn == count:
                return
            time.sleep(interval)
            live.update(watched.picture(console), refresh=True)
    finally:
        live.stop()


def _urgency(each: lease.NameView) -> tuple[int, int, str]:
    held = each.info.holder
    return -len(each.info.waiters), -held.since_ms if held else 0, each.name
