"""`holdfast watch`: look until somebody has seen enough.

Whatever ends it, the terminal is left as it was. An engine that cannot be asked for a while is no reason to end: that
is when people watch.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli import codes, look, looking, many, output
from holdfast.cli.ending import signals_end_it
from holdfast.cli.plain import plain
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from holdfast.blocking import Holdfast

# Above the names: the head, an empty line, the titles. Below: how many more there are.
_LINES_AROUND = 4
# What many have comes below, with an empty line and titles, and takes a third of the room at most.
_LINES_BETWEEN = 2
_PART = 3


class Look(NamedTuple):
    """What was seen; or, when the engine could not be asked, why, and since when."""

    seen: list[look.Seen]
    others: list[many.Many]
    more: bool
    trouble: str = ""
    since: float = 0.0


class Watch:
    """Looks, one after the other. Only the first may fail: then there is nothing to watch."""

    def __init__(self, hf: Holdfast, prefix: str, *, limit: int, every: bool) -> None:
        self._url = hf.url
        self._survey = look.Survey(hf, prefix, limit=limit, every=every)
        self._others = many.Survey(hf, prefix, limit=limit, every=every, share=look.SCAN_SHARE)
        self._last: Look | None = None

    def look(self) -> Look:
        try:
            seen, others = self._survey.look(), self._others.look()
        except Unavailable as error:
            if self._last is None:
                raise
            since = self._last.since if self._last.trouble else time.time()
            self._last = Look([], [], more=True, trouble=str(error), since=since)
        else:
            self._last = Look(seen, others, self._survey.more or self._others.more)
        return self._last

    def line(self) -> dict[str, object]:
        """For programs. What could not be seen is not told as free: there is an `error`, and `more`."""
        now = self.look()
        names, others = [one.as_json() for one in now.seen], [one.as_json() for one in now.others]
        told = {"at": time.time(), "names": names, "many": others, "more": now.more}
        return {**told, "error": now.trouble, "since": now.since} if now.trouble else told

    def picture(self, console: Console) -> RenderableType:
        """For people: whoever is waited for most comes first, then who has held for longest."""
        from rich.console import Group  # noqa: PLC0415

        now = self.look()
        at, where = time.strftime("%H:%M:%S"), plain(self._url)
        if now.trouble:
            since = time.strftime("%H:%M:%S", time.localtime(now.since))
            return Group(output.text(f"{at}  unreachable since {since}: {now.trouble}"))
        waiting = sum(len(one.standing.waiters) for one in now.seen) + sum(one.counted.waiting for one in now.others)
        held = sum(1 for one in now.seen if one.standing.holder is not None)
        taken = f", {sum(one.counted.lent for one in now.others)} taken of many" if now.others else ""
        more = ", and more names than are shown" if now.more else ""
        rows, others = sorted(now.seen, key=_urgency), sorted(now.others, key=lambda one: -one.counted.waiting)
        lines, below = _rooms(len(rows), len(others), console.height - _LINES_AROUND if console.is_terminal else None)
        # The figures first: what does not fit is cut at the end, and a URL may be long.
        head = f"{at}  {held} held{taken}, {waiting} waiting{more}  {where}"
        parts: list[RenderableType] = [output.text(head), ""]
        if rows or not others:
            parts.append(look.table(rows[:lines], console.width))
        if others:
            parts += ["", look.many_table(others[:below])] if rows else [look.many_table(others[:below])]
        left = max(0, len(rows) - lines) + max(0, len(others) - below)
        return Group(*parts, *([f"… {left} more"] if left else []))


def _rooms(names: int, others: int, room: int | None) -> tuple[int, int]:
    """How many lines locks have, and what many have, where there is room for so many."""
    if room is None:
        return names, others
    below = min(others, max(1, room // _PART if names else room))
    taken = below + _LINES_BETWEEN if others and names else 0
    return max(1, room - taken), below


def watch(
    url: str | None, prefix: str, *, limit: int, every: bool, interval: float, count: int | None, as_json: bool
) -> int:
    hf = looking.connect(url)
    try:
        with signals_end_it():
            watching = Watch(hf, prefix, limit=limit, every=every)
            console = output.console()
            if as_json or not console.is_terminal:
                _print(watching, console, interval=interval, count=count, as_json=as_json)
            else:
                _draw(watching, console, interval=interval, count=count)
    except KeyboardInterrupt:
        pass  # the usual way out
    finally:
        hf.close(look.CLOSE_S)
    return codes.OK


def _print(watching: Watch, console: Console, *, interval: float, count: int | None, as_json: bool) -> None:
    looks = 0
    while True:
        if as_json:
            output.print_json(watching.line(), indent=None)
        else:
            console.print(watching.picture(console))
            sys.stdout.flush()
        looks += 1
        if looks == count:
            return
        time.sleep(interval)


def _draw(watching: Watch, console: Console, *, interval: float, count: int | None) -> None:
    from rich.live import Live  # noqa: PLC0415 - only here

    looks = 0
    live = Live(watching.picture(console), console=console, screen=True, auto_refresh=False)
    try:  # and not `with`: the signal may come while the first picture is drawn
        live.start(refresh=True)
        while True:
            looks += 1
            if looks == count:
                return
            time.sleep(interval)
            live.update(watching.picture(console), refresh=True)
    finally:
        live.stop()


def _urgency(one: look.Seen) -> tuple[int, int, str]:
    held = one.standing.holder
    return -len(one.standing.waiters), -held.since_ms if held else 0, one.name
