"""Who holds what: `ls`, `show`, `wait`; and the way out, `break`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.blocking.build import aside
from holdfast.cli import asking, codes, failing, looking, many, output
from holdfast.cli.plain import plain
from holdfast.commands import POOL
from holdfast.core import inspection
from holdfast.core.step import run
from holdfast.errors import InvalidConfig, NotAcquired, NotFound
from holdfast.names import Holder, checked_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.blocking import Holdfast
    from holdfast.commands import LeaseInfo, LeaseParty

CLOSE_S = 2.0
# Two scans, for locks and for what many have, may take a twentieth of the time of whoever watches.
SCAN_SHARE = 40
# What is cut where a line is too long, in this order, and how much of it stays.
_SHRINK = (("label", 8), ("name", 16), ("holder", 12), ("name", 8))
_COLUMNS = ("name", "holder", "label", "held", "left", "fence", "waiting")


class Seen(NamedTuple):
    """One name, as the engine saw it just now."""

    name: str
    standing: LeaseInfo

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
        holder = Holder.unpacked(held.holder)
        left = f"{output.span(held.remaining_ms / 1000)}{' (offered)' if self.standing.offered else ''}"
        since = output.span(held.since_ms / 1000)
        return (self.name, f"{holder.host}:{holder.pid}", holder.label, since, left, held.fence, waiting or "")


def _person(seat: LeaseParty) -> dict[str, Any]:
    return Holder.unpacked(seat.holder)._asdict()


class Survey:
    """Names and their standing, looked at again and again; names are scanned for as seldom as their number asks."""

    def __init__(self, hf: Holdfast, prefix: str, *, limit: int, every: bool) -> None:
        self._hf = hf
        self._prefix = checked_name(prefix) if prefix else ""
        self._limit = limit
        self._every = every
        self._names: tuple[str, ...] = ()
        self._again = 0.0
        self.more = False

    def look(self) -> list[Seen]:
        began = time.monotonic()
        if began < self._again:
            return self._of(self._names)
        seen = self._scan()
        self._names = tuple(one.name for one in seen)
        self._again = began + (time.monotonic() - began) * SCAN_SHARE
        return seen

    def _scan(self) -> list[Seen]:
        client = self._hf._client
        found, self.more = run(inspection.scan(client, self._prefix, self._limit, aside, every=self._every))
        return [Seen(*one) for one in found]

    def _of(self, names: tuple[str, ...]) -> list[Seen]:
        standings = run(inspection.survey(self._hf._client, names))
        seen = [Seen(name, standing) for name, standing in zip(names, standings, strict=True)]
        return [one for one in seen if self._every or one.interesting]


def list_names(url: str | None, prefix: str, *, limit: int, every: bool, as_json: bool) -> int:
    hf = looking.connect(url)
    try:
        survey = Survey(hf, prefix, limit=limit, every=every)
        seen = survey.look()
        others, cut = many.listed(hf, prefix, limit, every=every)
    finally:
        hf.close(CLOSE_S)
    more = survey.more or cut
    if as_json:
        told = [one.as_json() for one in seen]
        output.print_json({"names": told, "many": [one.as_json() for one in others], "more": more})
        return codes.OK
    console = output.console()
    if seen:
        console.print(table(seen, console.width))
    if seen and others:
        console.print()
    if others:
        console.print(many_table(others))
    if not (seen or others or more):
        console.print("nothing is held" + (f" under names that begin with {plain(prefix)!r}" if prefix else ""))
    if more:
        cut = len(seen) >= limit or len(others) >= limit
        what = f"there are more than {limit} names" if cut else "there are more names than were looked at"
        sys.stderr.write(f"holdfast: {what}: give a prefix{', or a larger --limit' if cut else ''}\n")
    return codes.OK


def show(url: str | None, name: str, *, as_json: bool) -> int:
    checked_name(name)
    with looking.connect(url) as hf:
        seen, others = _seen(hf, name), many.of_name(hf, name)
    if as_json:
        output.print_json({**seen.as_json(), "many": [one.as_json() for one in others]})
        return codes.OK
    console = output.console()
    if others:
        console.print(many_table(others))
        if not seen.interesting:
            return codes.OK
        console.print()
    console.print(output.facts(_facts(seen)))
    if seen.standing.waiters:
        rows = [(place, *_whom(seat)) for place, seat in enumerate(seen.standing.waiters, 1)]
        console.print()
        console.print(output.table(("waiting", "who", "label", "for"), rows, right=("waiting",)))
    return codes.OK


def wait(url: str | None, name: str, *, timeout: float | None, interval: float, as_json: bool) -> int:
    """Until nobody holds the name, or a part of it, and nobody is about to."""
    checked_name(name)
    hf = looking.connect(url)
    began = time.monotonic()
    try:
        while True:
            seen = _seen(hf, name)
            others = [] if seen.interesting else [one for one in many.of_name(hf, name) if one.taken]
            if not seen.interesting and not others:
                break
            waited = time.monotonic() - began
            if timeout is not None and waited >= timeout:
                return _still_busy(seen, others, waited, as_json=as_json)
            left = interval if timeout is None else min(interval, timeout - waited)
            time.sleep(max(0.0, left))
    finally:
        hf.close(CLOSE_S)
    waited = time.monotonic() - began
    if as_json:
        output.print_json({"name": name, "free": True, "waited": round(waited, 3)})
    else:
        output.console().print(f"nobody holds {plain(name)!r}, after {output.span(waited)}", markup=False)
    return codes.OK


def break_lease(url: str | None, name: str, reason: str, *, yes: bool, as_json: bool) -> int:
    """The lease that was shown and no other: a holder that came since is left alone."""
    checked_name(name)
    with looking.connect(url) as hf:
        seen = _seen(hf, name)
        held = seen.standing.holder
        if held is None:
            _refuse_many(hf, name)
            raise NotFound(name, "lease to break")
        if not yes and not asking.agreed([*_facts(seen), ("reason", reason)], "holder", "Break it?"):
            return failing.tell("refused", codes.ATTENTION, "nothing was done", as_json=as_json, name=name)
        run(inspection.break_lease(hf._client, name, reason, held.fence))
        after = _seen(hf, name)
    if as_json:
        output.print_json({"broken": {**seen.as_json(), "reason": reason}, "now": after.as_json()})
    else:
        # It renews at two thirds of its ttl, of which we know no more than that this much is left.
        within = output.span(held.remaining_ms / 3000)
        output.console().print(
            f"{plain(name)!r}: the lease with fence {held.fence} is broken, the fence is now "
            f"{after.standing.fence}; its holder hears of it when it renews, within {within} if it is well",
            markup=False,
            soft_wrap=True,
        )
    return codes.OK


def _seen(hf: Holdfast, name: str) -> Seen:
    return Seen(name, run(inspection.standing(hf._client, name)))


def _refuse_many(hf: Holdfast, name: str) -> None:
    """Of what many have, there is no one lease to break."""
    for one in many.of_name(hf, name):
        how = "`holdfast pool break` ends that of an item" if one.kind == POOL else "end the program that has it"
        raise InvalidConfig("name", name, f"it is {one}; there is no one lease to break: {how}")


def many_table(others: list[many.Many]) -> RenderableType:
    """One line for each."""
    return output.table(many.COLUMNS, [one.row() for one in others], right=("taken", "of", "waiting"))


def _still_busy(seen: Seen, others: list[many.Many], waited: float, *, as_json: bool) -> int:
    """The same facts as for whoever wanted to have it; but nothing was asked for that could be refused."""
    held = seen.standing.holder
    if others:
        state, error = f"taken: it is {others[0]}", NotAcquired(seen.name, waited=waited)
    elif held is None:
        state, error = "about to be held by who waits for it", NotAcquired(seen.name, waited=waited)
    else:
        holder, left_s = Holder.unpacked(held.holder), held.remaining_ms / 1000
        state = f"held by {holder}, for another {output.span(left_s)} unless it is renewed"
        error = NotAcquired(seen.name, holder=str(holder), fence=held.fence, waited=waited, remaining=left_s)
    line = f"after {output.span(waited)} {seen.name!r} is still {state}"
    return failing.tell("busy", codes.BUSY, line, as_json=as_json, **failing.busy(error))


def table(seen: list[Seen], width: int) -> RenderableType:
    """One line per name. Where they do not fit, labels are cut first, then names, in the middle; never the figures."""
    rows = output.fitted(_COLUMNS, [one.row() for one in seen], _SHRINK, width)
    return output.table(_COLUMNS, rows, right=("held", "left", "fence", "waiting"))


def _whom(seat: LeaseParty) -> tuple[str, str, str]:
    holder = Holder.unpacked(seat.holder)
    return f"{holder.host}:{holder.pid}", holder.label, output.span(seat.since_ms / 1000)


def _facts(seen: Seen) -> list[tuple[str, object]]:
    held = seen.standing.holder
    if held is None:
        return [("name", seen.name), ("holder", "nobody"), ("last fence", seen.standing.fence or "none is remembered")]
    holder = Holder.unpacked(held.holder)
    lines: list[tuple[str, object]] = [
        ("name", seen.name),
        ("holder", f"{holder.host}, process {holder.pid}" + (" (offered, not confirmed yet)" * seen.standing.offered)),
        ("label", holder.label or "-"),
        ("since", f"{output.span(held.since_ms / 1000)} ago"),
        ("remaining", f"{output.span(held.remaining_ms / 1000)} unless it is renewed"),
        ("fence", held.fence),
    ]
    if holder.info:
        lines.append(("info", holder.info))
    return lines
