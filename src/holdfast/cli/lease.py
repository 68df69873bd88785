"""`holdfast ls`, `show`, `wait` and `break`: who holds which lease, and how to end a lease by force."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from holdfast.blocking.build import run_blocking
from holdfast.cli import codes, errors, output, pool_like, prompts
from holdfast.cli.connect import CLOSE_S, connect
from holdfast.cli.options import All, Json, Limit, Name, Prefix, Url, Yes, duration
from holdfast.cli.output import plain
from holdfast.commands import POOL
from holdfast.core import inspection
from holdfast.core.step import run
from holdfast.errors import InvalidConfig, NotAcquired, NotFound
from holdfast.names import Holder, checked_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.blocking import Holdfast
    from holdfast.cli.pool_like import PoolLike
    from holdfast.commands import LeaseInfo, LeaseParty

# The pause after a scan, in multiples of its duration: the two scans of `watch` then take a twentieth of its time.
SCAN_PAUSE = 40
# The columns that are cut if a line is too long, in this order, and the width that each keeps.
_SHRINK = (("label", 8), ("name", 16), ("holder", 12), ("name", 8))
_COLUMNS = ("name", "holder", "label", "held", "left", "fence", "waiting")


class NameView(NamedTuple):
    """One name as the engine sees it now."""

    name: str
    info: LeaseInfo

    @property
    def in_use(self) -> bool:
        """True if the name has a holder or a waiter."""
        return self.info.holder is not None or bool(self.info.waiters)

    def as_json(self) -> dict[str, Any]:
        """Return the form for programs, without tokens: a process that knows a token could end the lease."""
        held = self.info.holder
        return {
            "name": self.name,
            "held": held is not None,
            "offered": self.info.offered,
            "fence": self.info.fence,
            "holder": None if held is None else _holder_json(held),
            "since": None if held is None else held.since_ms / 1000,
            "remaining": None if held is None else held.remaining_ms / 1000,
            "waiters": [{**_holder_json(waiter), "since": waiter.since_ms / 1000} for waiter in self.info.waiters],
        }

    def row(self) -> tuple[object, ...]:
        """Return the cells of the table of `ls`."""
        held, waiting = self.info.holder, len(self.info.waiters)
        if held is None:
            return (self.name, "-", "", "", "", self.info.fence, waiting or "")
        holder = Holder.unpacked(held.holder)
        left = f"{output.span(held.remaining_ms / 1000)}{' (offered)' if self.info.offered else ''}"
        since = output.span(held.since_ms / 1000)
        return (self.name, f"{holder.host}:{holder.pid}", holder.label, since, left, held.fence, waiting or "")


class LeaseSurvey:
    """Queries the same names again and again, and scans for new names rarely, so that scans take a bounded time."""

    def __init__(self, hf: Holdfast, prefix: str, *, limit: int, every: bool) -> None:
        self._hf = hf
        self._prefix = checked_name(prefix) if prefix else ""
        self._limit = limit
        self._every = every
        self._names: tuple[str, ...] = ()
        self._next_scan = 0.0
        self.more = False

    def look(self) -> list[NameView]:
        """Return the names as they are now."""
        began = time.monotonic()
        if began < self._next_scan:
            return self._query(self._names)
        found = self._scan()
        self._names = tuple(each.name for each in found)
        self._next_scan = began + (time.monotonic() - began) * SCAN_PAUSE
        return found

    def _scan(self) -> list[NameView]:
        client = self._hf._client
        found, self.more = run(inspection.scan(client, self._prefix, self._limit, run_blocking, every=self._every))
        return [NameView(*each) for each in found]

    def _query(self, names: tuple[str, ...]) -> list[NameView]:
        infos = run(inspection.lease_infos(self._hf._client, names))
        found = [NameView(name, info) for name, info in zip(names, infos, strict=True) if info is not None]
        return [each for each in found if self._every or each.in_use]


def list_names(
    prefix: Prefix = "", url: Url = None, every: All = False, limit: Limit = 1000, as_json: Json = False
) -> int:
    """List the leases: holder, age, remaining time, and how many wait.

    This command scans the engine. On a large server it takes a while, in small steps that block no other client.

    \b
    Example:
      holdfast ls orders/
    """
    hf = connect(url)
    try:
        survey = LeaseSurvey(hf, prefix, limit=limit, every=every)
        found = survey.look()
        others, cut = pool_like.listed(hf, prefix, limit, every=every)
    finally:
        hf.close(CLOSE_S)
    more = survey.more or cut
    if as_json:
        names = [each.as_json() for each in found]
        output.print_json({"names": names, "pool_like": [each.as_json() for each in others], "more": more})
        return codes.OK
    console = output.console()
    if found:
        console.print(table(found, console.width))
    if found and others:
        console.print()
    if others:
        console.print(pool_like.table(others))
    if not (found or others or more):
        console.print("nothing is held" + (f" under names that begin with {plain(prefix)!r}" if prefix else ""))
    if more:
        cut = len(found) >= limit or len(others) >= limit
        what = f"there are more than {limit} names" if cut else "there are more names than the scan looked at"
        sys.stderr.write(f"holdfast: {what}: give a prefix{', or a larger --limit' if cut else ''}\n")
    return codes.OK


def show(name: Name, url: Url = None, as_json: Json = False) -> int:
    """Show the holder of one name, and its waiting line in order.

    \b
    Example:
      holdfast show orders/42
    """
    checked_name(name)
    with connect(url) as hf:
        view, others = _view(hf, name), pool_like.of_name(hf, name)
    if as_json:
        output.print_json({**view.as_json(), "pool_like": [each.as_json() for each in others]})
        return codes.OK
    console = output.console()
    if others:
        console.print(pool_like.table(others))
        if not view.in_use:
            return codes.OK
        console.print()
    console.print(output.facts(_facts(view)))
    if view.info.waiters:
        rows = [(place, *_waiter_row(waiter)) for place, waiter in enumerate(view.info.waiters, 1)]
        console.print()
        console.print(output.table(("waiting", "who", "label", "for"), rows, right=("waiting",)))
    return codes.OK


def wait(
    name: Name,
    url: Url = None,
    timeout: Annotated[float | None, duration("How long to wait at most.", show_default="for ever")] = None,
    interval: Annotated[float, duration("The time between two queries.", least=0.05)] = 0.5,
    as_json: Json = False,
) -> int:
    """Wait until the name has no holder and no waiter. The command takes no lease and joins no waiting line.

    \b
    Example:
      holdfast wait deploy --timeout 10m && echo "the deployment is over"
    """
    checked_name(name)
    hf = connect(url)
    began = time.monotonic()
    try:
        while True:
            view = _view(hf, name)
            others = [] if view.in_use else [each for each in pool_like.of_name(hf, name) if each.taken]
            if not view.in_use and not others:
                break
            waited = time.monotonic() - began
            if timeout is not None and waited >= timeout:
                return _still_busy(view, others, waited, as_json=as_json)
            left = interval if timeout is None else min(interval, timeout - waited)
            time.sleep(max(0.0, left))
    finally:
        hf.close(CLOSE_S)
    waited = time.monotonic() - began
    if as_json:
        output.print_json({"name": name, "free": True, "waited": round(waited, 3)})
    else:
        output.console().print(f"{plain(name)!r} is free, after {output.span(waited)}", markup=False)
    return codes.OK


def break_lease(
    name: Name,
    reason: Annotated[str, typer.Option("--reason", help="Why: the holder reads it in its LeaseLost.")],
    url: Url = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """End a lease by force: the fence grows, the next waiter gets the lease, and the holder gets LeaseLost.

    Safe only where the resource compares fences: the holder may continue to work until its next renewal.

    \b
    Example:
      holdfast break orders/42 --reason "worker 7 is stuck, see ticket 1234"
    """
    checked_name(name)
    with connect(url) as hf:
        view = _view(hf, name)
        held = view.info.holder
        if held is None:
            _refuse_pool_like(hf, name)
            raise NotFound(name, "lease to break")
        if not yes and not prompts.confirm_force([*_facts(view), ("reason", reason)], "holder", "Break it?"):
            return errors.report_cancelled(as_json=as_json, name=name)
        # Pass the fence, to break only the lease that the prompt showed. A holder that came since then keeps its lease.
        run(inspection.break_lease(hf._client, name, reason, held.fence))
        after = _view(hf, name)
    if as_json:
        output.print_json({"broken": {**view.as_json(), "reason": reason}, "now": after.as_json()})
    else:
        # A holder renews when a third of its ttl has passed; of the ttl, only the remaining time is known here.
        within = output.span(held.remaining_ms / 3000)
        output.print_line(
            f"{plain(name)!r}: the lease with fence {held.fence} is broken, the fence is now "
            f"{after.info.fence}; a healthy holder learns of it when it renews, within {within}"
        )
    return codes.OK


def table(found: list[NameView], width: int) -> RenderableType:
    """Return a table with one line per name.

    Lines that do not fit lose parts of the labels first, then the middles of the names, and never a figure.
    """
    rows = output.fitted(_COLUMNS, [each.row() for each in found], _SHRINK, width)
    return output.table(_COLUMNS, rows, right=("held", "left", "fence", "waiting"))


def _view(hf: Holdfast, name: str) -> NameView:
    return NameView(name, run(inspection.lease_info(hf._client, name)))


def _holder_json(waiter: LeaseParty) -> dict[str, Any]:
    return Holder.unpacked(waiter.holder)._asdict()


def _refuse_pool_like(hf: Holdfast, name: str) -> None:
    """Raise `InvalidConfig` if the name is a pool, semaphore or read-write lock: it has several leases, not one."""
    for each in pool_like.of_name(hf, name):
        advice = "`holdfast pool break` ends the lease of one item" if each.kind == POOL else "end the program"
        raise InvalidConfig("name", name, f"it is {each}; there is no single lease to break: {advice}")


def _still_busy(view: NameView, others: list[PoolLike], waited: float, *, as_json: bool) -> int:
    """Report that the timeout passed, with the same facts as `NotAcquired`."""
    held = view.info.holder
    if others:
        state, error = f"taken: it is {others[0]}", NotAcquired(view.name, waited=waited)
    elif held is None:
        state, error = "about to be held by its first waiter", NotAcquired(view.name, waited=waited)
    else:
        holder, left_s = Holder.unpacked(held.holder), held.remaining_ms / 1000
        state = f"held by {holder}, for another {output.span(left_s)} unless it is renewed"
        error = NotAcquired(view.name, holder=str(holder), fence=held.fence, waited=waited, remaining=left_s)
    line = f"after {output.span(waited)} {view.name!r} is still {state}"
    return errors.report("busy", codes.BUSY, line, as_json=as_json, **errors.busy_facts(error))


def _waiter_row(waiter: LeaseParty) -> tuple[str, str, str]:
    holder = Holder.unpacked(waiter.holder)
    return f"{holder.host}:{holder.pid}", holder.label, output.span(waiter.since_ms / 1000)


def _facts(view: NameView) -> list[tuple[str, object]]:
    held = view.info.holder
    if held is None:
        return [("name", view.name), ("holder", "none"), ("last fence", view.info.fence or "none remembered")]
    holder = Holder.unpacked(held.holder)
    lines: list[tuple[str, object]] = [
        ("name", view.name),
        ("holder", f"{holder.host}, process {holder.pid}" + (" (offered, not confirmed yet)" * view.info.offered)),
        ("label", holder.label or "-"),
        ("since", f"{output.span(held.since_ms / 1000)} ago"),
        ("remaining", f"{output.span(held.remaining_ms / 1000)} unless it is renewed"),
        ("fence", held.fence),
    ]
    if holder.info:
        lines.append(("info", holder.info))
    return lines
