"""Who holds what: `ls`, `show`, `watch`, `wait`; and the way out, `break`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import holdfast
from holdfast.cli import codes, output
from holdfast.core import inspection
from holdfast.core.run import run
from holdfast.errors import InvalidConfig, NotAcquired, NotFound
from holdfast.names import Owner, checked_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.blocking import Holdfast
    from holdfast.commands import Seat, Standing

CLOSE_S = 2.0
# A scan may take a twentieth of the time of whoever watches.
_SCAN_SHARE = 20
_COLUMNS = ("name", "holder", "label", "held", "left", "fence", "waiting")


class Seen(NamedTuple):
    """One name, as the engine saw it just now."""

    name: str
    standing: Standing

    @property
    def interesting(self) -> bool:
        return self.standing.holder is not None or bool(self.standing.waiters)

    def as_json(self) -> dict[str, Any]:
        """The form for programs. Tokens are not told: whoever has one could end the lease."""
        held = self.standing.holder
        return {
            "name": self.name,
            "held": held is not None,
            "offered": self.standing.offered,
            "fence": self.standing.fence,
            "holder": None if held is None else _person(held),
            "since": None if held is None else held.since_ms / 1000,
            "remaining": None if held is None else held.remaining_ms / 1000,
            "waiters": [{**_person(seat), "since": seat.since_ms / 1000} for seat in self.standing.waiters],
        }

    def row(self) -> tuple[object, ...]:
        held, waiting = self.standing.holder, len(self.standing.waiters)
        if held is None:
            return (self.name, "-", "", "", "", self.standing.fence, waiting or "")
        owner = Owner.unpacked(held.owner)
        left = f"{output.span(held.remaining_ms / 1000)}{' (offered)' if self.standing.offered else ''}"
        since = output.span(held.since_ms / 1000)
        return (self.name, f"{owner.host}:{owner.pid}", owner.label, since, left, held.fence, waiting or "")


def _person(seat: Seat) -> dict[str, Any]:
    return Owner.unpacked(seat.owner)._asdict()


class Survey:
    """Names and their standing, looked at again and again; names are scanned for as seldom as their number asks."""

    def __init__(self, hf: Holdfast, prefix: str, *, limit: int, every: bool) -> None:
        self._hf = hf
        self._prefix = prefix
        self._limit = limit
        self._every = every
        self._names: tuple[str, ...] = ()
        self._again = 0.0
        self.more = False

    def look(self) -> list[Seen]:
        began = time.monotonic()
        if began >= self._again:
            found = self._hf._client.engine.names(self._prefix, self._limit)
            self._names, self.more = found
            took = time.monotonic() - began
            self._again = began + took * _SCAN_SHARE
        standings = run(inspection.survey(self._hf._client, self._names))
        seen = [Seen(name, standing) for name, standing in zip(self._names, standings, strict=True)]
        return [one for one in seen if self._every or one.interesting]


def list_names(url: str | None, prefix: str, *, limit: int, every: bool, as_json: bool) -> int:
    hf = holdfast.connect(url)
    try:
        survey = Survey(hf, prefix, limit=limit, every=every)
        seen = survey.look()
    finally:
        hf.close(CLOSE_S)
    if as_json:
        output.print_json({"names": [one.as_json() for one in seen], "more": survey.more})
        return codes.OK
    console = output.console()
    if seen:
        console.print(_table(seen))
    else:
        console.print("nothing is held" + (f" under names that begin with {output.plain(prefix)!r}" if prefix else ""))
    if survey.more:
        sys.stderr.write(f"holdfast: there are more than {limit} names: give a prefix, or a larger --limit\n")
    return codes.OK


def show(url: str | None, name: str, *, as_json: bool) -> int:
    checked_name(name)
    with holdfast.connect(url) as hf:
        seen = _seen(hf, name)
    if as_json:
        output.print_json(seen.as_json())
        return codes.OK
    console = output.console()
    console.print(output.facts(_facts(seen)))
    if seen.standing.waiters:
        rows = [(place, *_whom(seat)) for place, seat in enumerate(seen.standing.waiters, 1)]
        console.print()
        console.print(output.table(("waiting", "who", "label", "for"), rows, right=("waiting",)))
    return codes.OK


def watch(
    url: str | None, prefix: str, *, limit: int, every: bool, interval: float, count: int | None, as_json: bool
) -> int:
    """Look until somebody has seen enough."""
    hf = holdfast.connect(url)
    try:
        survey = Survey(hf, prefix, limit=limit, every=every)
        _watch(hf, survey, interval=interval, count=count, as_json=as_json)
    except KeyboardInterrupt:
        pass  # the usual way out
    finally:
        hf.close(CLOSE_S)
    return codes.OK


def _watch(hf: Holdfast, survey: Survey, *, interval: float, count: int | None, as_json: bool) -> None:
    from rich.live import Live  # noqa: PLC0415 - only here

    def picture() -> RenderableType:
        from rich.console import Group  # noqa: PLC0415

        seen = survey.look()
        waiting = sum(len(one.standing.waiters) for one in seen)
        held = sum(1 for one in seen if one.standing.holder is not None)
        more = ", and more names than are shown" if survey.more else ""
        head = f"{output.plain(hf.url)}  {time.strftime('%H:%M:%S')}  {held} held, {waiting} waiting{more}"
        return Group(head, "", _table(seen))

    console = output.console()
    looks = 0
    if as_json or not console.is_terminal:
        while True:
            if as_json:
                seen = [one.as_json() for one in survey.look()]
                output.print_json({"at": time.time(), "names": seen, "more": survey.more}, indent=None)
            else:
                console.print(picture())
                sys.stdout.flush()
            looks += 1
            if looks == count:
                return
            time.sleep(interval)
    with Live(picture(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            looks += 1
            if looks == count:
                return
            time.sleep(interval)
            live.update(picture(), refresh=True)


def wait(url: str | None, name: str, *, timeout: float | None, interval: float, as_json: bool) -> int:
    """Until nobody holds the name and nobody is about to."""
    checked_name(name)
    hf = holdfast.connect(url)
    began = time.monotonic()
    try:
        while (seen := _seen(hf, name)).interesting:
            waited = time.monotonic() - began
            if timeout is not None and waited >= timeout:
                raise _busy(seen, waited)
            left = interval if timeout is None else min(interval, timeout - waited)
            time.sleep(max(0.0, left))
    finally:
        hf.close(CLOSE_S)
    waited = time.monotonic() - began
    if as_json:
        output.print_json({"name": name, "free": True, "waited": round(waited, 3)})
    else:
        output.console().print(f"nobody holds {output.plain(name)!r}, after {output.span(waited)}", markup=False)
    return codes.OK


def break_lease(url: str | None, name: str, reason: str, *, yes: bool, as_json: bool) -> int:
    """The lease that was shown and no other: a holder that came since is left alone."""
    checked_name(name)
    with holdfast.connect(url) as hf:
        seen = _seen(hf, name)
        held = seen.standing.holder
        if held is None:
            raise NotFound(name, "lease to break")
        if not yes:
            _confirm(seen, reason)
        run(inspection.break_lease(hf._client, name, reason, held.fence))
        after = _seen(hf, name)
    if as_json:
        output.print_json({"broken": {**seen.as_json(), "reason": reason}, "now": after.as_json()})
    else:
        within = output.span(held.remaining_ms / 1000)
        output.console().print(
            f"{output.plain(name)!r}: the lease with fence {held.fence} is broken, the fence is now "
            f"{after.standing.fence}; its holder hears of it when it renews, within {within}",
            markup=False,
            soft_wrap=True,
        )
    return codes.OK


def _confirm(seen: Seen, reason: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidConfig("yes", False, "there is no terminal to ask on: add --yes")
    import typer  # noqa: PLC0415

    console = output.console()
    console.print(output.facts([*_facts(seen), ("reason", reason)]))
    console.print("The holder may be at work until it hears of it; only a resource that compares fences is safe.")
    typer.confirm("Break it?", abort=True)


def _seen(hf: Holdfast, name: str) -> Seen:
    return Seen(name, run(inspection.standing(hf._client, name)))


def _busy(seen: Seen, waited: float) -> NotAcquired:
    held = seen.standing.holder
    if held is None:
        return NotAcquired(seen.name, waited=waited)
    owner, remaining = str(Owner.unpacked(held.owner)), held.remaining_ms / 1000
    return NotAcquired(seen.name, owner=owner, fence=held.fence, waited=waited, remaining=remaining)


def _table(seen: list[Seen]) -> RenderableType:
    return output.table(_COLUMNS, [one.row() for one in seen], right=("held", "left", "fence", "waiting"))


def _whom(seat: Seat) -> tuple[str, str, str]:
    owner = Owner.unpacked(seat.owner)
    return f"{owner.host}:{owner.pid}", owner.label, output.span(seat.since_ms / 1000)


def _facts(seen: Seen) -> list[tuple[str, object]]:
    held = seen.standing.holder
    if held is None:
        return [("name", seen.name), ("holder", "nobody"), ("last fence", seen.standing.fence or "none is remembered")]
    owner = Owner.unpacked(held.owner)
    lines: list[tuple[str, object]] = [
        ("name", seen.name),
        ("holder", f"{owner.host}, process {owner.pid}" + (" (offered, not confirmed yet)" * seen.standing.offered)),
        ("label", owner.label or "-"),
        ("since", f"{output.span(held.since_ms / 1000)} ago"),
        ("remaining", f"{output.span(held.remaining_ms / 1000)} unless it is renewed"),
        ("fence", held.fence),
    ]
    if owner.info:
        lines.append(("info", owner.info))
    return lines
