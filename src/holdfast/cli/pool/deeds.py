"""What `holdfast pool` does.

Whoever may use the engine may change its pools; the admin secret keeps hands off by mistake, not by malice. Rights are
the engine's matter.
"""

from __future__ import annotations

import hmac
import os
import sys
from typing import TYPE_CHECKING, Any

from holdfast.cli import asking, codes, failing, looking, output
from holdfast.cli.plain import plain
from holdfast.commands import POOL
from holdfast.core.pool import pool as core_pool
from holdfast.core.step import run
from holdfast.errors import InvalidConfig, NotFound, NotPermitted
from holdfast.names import checked_name

if TYPE_CHECKING:
    from holdfast.core.pool.pool import ItemStatus, PoolStats

SECRET = "HOLDFAST_ADMIN_SECRET"  # noqa: S105 - where it is, not what it is
_COLUMNS = ("item", "state", "holder", "label", "since", "back in", "used", "fence")
_SHRINK = (("label", 8), ("item", 16), ("holder", 12), ("item", 8))


def list_pools(url: str | None, prefix: str, *, limit: int, as_json: bool) -> int:
    with looking.connect(url, "pools") as hf:
        hf._client.refuse_without("pools")  # where there can be none, "there are none" would mislead
        names, more = hf._client.engine.names(prefix, limit, POOL)
        found = [stats for name in names if (stats := hf.pool(name).stats(0)).size or stats.lent]
    if as_json:
        output.print_json({"pools": [_figures(stats) for stats in found], "more": more})
        return codes.OK
    columns = ("pool", "size", "lent", "cooling", "free", "waiting")
    rows = [(stats.name, *stats[1:6]) for stats in found]
    output.listing("pools", columns, rows, prefix, limit if more else 0)
    return codes.OK


def show(url: str | None, name: str, *, limit: int, as_json: bool) -> int:
    checked_name(name)
    with looking.connect(url, "pools") as hf:
        stats = hf.pool(name).stats(limit)
    if not (stats.size or stats.lent or stats.cooling):
        raise NotFound(name, "items: there is no such pool")
    if as_json:
        items = [_item(item) for item in stats.items]
        waiters = [holder._asdict() for holder in stats.waiters]
        output.print_json({**_figures(stats), "items": items, "waiters": waiters, "trouble": stats.trouble})
        return codes.OK
    console = output.console()
    facts = [("pool", stats.name), *((name, getattr(stats, name)) for name in _FIGURES)]
    console.print(output.facts([*facts, *([("trouble", stats.trouble)] if stats.trouble else [])]))
    if stats.items:
        rows = output.fitted(_COLUMNS, [_row(item) for item in stats.items], _SHRINK, console.width)
        console.print()
        console.print(output.table(_COLUMNS, rows, right=("since", "back in", "used", "fence")))
    if stats.waiters:
        who = [(place, f"{holder.host}:{holder.pid}", holder.label) for place, holder in enumerate(stats.waiters, 1)]
        console.print()
        console.print(output.table(("waiting", "who", "label"), who, right=("waiting",)))
    if len(stats.items) < stats.lent + stats.cooling + stats.free and not stats.trouble:
        sys.stderr.write(f"holdfast: {len(stats.items)} of {stats.size} items are shown: give a larger --limit\n")
    return codes.OK


def set_items(
    url: str | None, name: str, items: tuple[str, ...], *, leave: bool, yes: bool, secret: str | None, as_json: bool
) -> int:
    if items == ("-",):
        items = tuple(line for line in sys.stdin.read().splitlines() if line)
    _admit(secret)
    if not items and not yes and not _confirmed(name):
        return failing.tell("refused", codes.ATTENTION, "nothing was done", as_json=as_json, name=name)
    with looking.connect_or_make(url) as hf:
        pool = hf.pool(name)
        leaving = pool.set_items(items, leave=leave)
        stats = pool.stats(0)
    if as_json:
        output.print_json({**_figures(stats), "leaving": list(leaving)})
        return codes.OK
    going = f"; {len(leaving)} more leave when they come back" if leaving else ""
    _say(f"{plain(name)!r} has {stats.size} items{going}")
    return codes.OK


def cool(url: str | None, name: str, item: str, seconds: float, *, secret: str | None, as_json: bool) -> int:
    _admit(secret)
    with looking.connect(url, "pools") as hf:
        hf.pool(name).cool(item, seconds)
    if as_json:
        output.print_json({"pool": name, "item": item, "cooling": seconds})
    else:
        now = f"is lent to nobody for {output.span(seconds)}" if seconds else "may be lent again"
        _say(f"{plain(item)!r} of {plain(name)!r} {now}")
    return codes.OK


def break_item(
    url: str | None, name: str, item: str, reason: str, *, yes: bool, secret: str | None, as_json: bool
) -> int:
    """The lease that was shown and no other: a borrower that came since is left alone."""
    _admit(secret)
    with looking.connect(url, "pools") as hf:
        pool = hf.pool(name)
        found = run(core_pool.lent(pool, item))
        facts = [("pool", name), *zip(_COLUMNS, _row(found), strict=True), ("reason", reason)]
        if not yes and not asking.agreed(facts, "borrower", "Break it?"):
            return failing.tell("refused", codes.ATTENTION, "nothing was done", as_json=as_json, name=name, item=item)
        run(core_pool.break_item(pool, item, reason, found.fence))
        after = next((one for one in pool.stats().items if one.name == item), None)
    if as_json:
        output.print_json({"pool": name, "broken": item, "reason": reason, "now": _item(after) if after else None})
    else:
        rests = f", and rests for {output.span(after.remaining)}" if after and after.state == "cooling" else ""
        _say(f"the lease of {plain(item)!r} of {plain(name)!r} is broken{rests}; its borrower is told")
    return codes.OK


def _confirmed(name: str) -> bool:
    """No items at all may be what an empty variable said: it ends the pool, and sends away all who wait."""
    if not sys.stdin.isatty():
        raise InvalidConfig("items", (), "no items end the pool: add --yes if that is what you want")
    import typer  # noqa: PLC0415

    return typer.confirm(f"No items: end the pool {plain(name)!r}?", err=True)


def _admit(secret: str | None) -> None:
    """Where a secret is set, it must be said: on the command line or to the terminal."""
    wanted = os.environ.get(SECRET)
    if not wanted:
        return
    if secret is None and sys.stdin.isatty():
        import typer  # noqa: PLC0415

        secret = typer.prompt("admin secret", hide_input=True, err=True)
    if secret is None or not hmac.compare_digest(secret.encode(), wanted.encode()):
        raise NotPermitted("change a pool", f"{SECRET} is set here, and --secret is not that")


_FIGURES = ("size", "lent", "cooling", "free", "waiting")


def _figures(stats: PoolStats) -> dict[str, Any]:
    return {"pool": stats.name, **{name: getattr(stats, name) for name in _FIGURES}}


def _item(item: ItemStatus) -> dict[str, Any]:
    return {**item._asdict(), "owner": None if item.holder is None else item.holder._asdict()}


def _row(item: ItemStatus) -> tuple[object, ...]:
    state = f"{item.state}, leaving" if item.leaving else item.state
    holder = ("-", "") if item.holder is None else (f"{item.holder.host}:{item.holder.pid}", item.holder.label)
    since = "never" if item.since is None else output.span(item.since)
    back = output.span(item.remaining) if item.state != "free" else ""
    return (item.name, state, *holder, since, back, item.used, item.fence or "")


def _say(text: str) -> None:
    output.console().print(text, markup=False, soft_wrap=True)
