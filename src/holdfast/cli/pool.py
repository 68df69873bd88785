"""`holdfast pool`: list pools, show one, and change its items.

Every user of the engine may change its pools. The admin secret prevents mistakes, not malice: access rights belong to
the engine.
"""

from __future__ import annotations

import hmac
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import codes, completion, errors, output, prompts
from holdfast.cli.connect import connect, connect_or_create
from holdfast.cli.lazy import CommandGroup
from holdfast.cli.options import Json, Limit, Prefix, Span, Url, Yes
from holdfast.cli.output import plain, print_line
from holdfast.commands import POOL, GetPoolStats
from holdfast.core.step import run
from holdfast.engines import Capability
from holdfast.errors import InvalidConfig, NotFound, NotPermitted
from holdfast.names import checked_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.pool.pool import ItemStatus, PoolStats

SECRET = "HOLDFAST_ADMIN_SECRET"  # noqa: S105 - the name of the variable
_COLUMNS = ("item", "state", "holder", "label", "since", "back in", "used", "fence")
_SHRINK = (("label", 8), ("item", 16), ("holder", 12), ("item", 8))
_FIGURES = ("size", "lent", "cooling", "free", "waiting")

app = CommandGroup(
    "List and change pools: sets of items that are lent to one borrower each.\n\n"
    "\b\nExample:\n  holdfast pool show channels"
)

PoolName = Annotated[str, typer.Argument(help="The name of the pool.", metavar="NAME", autocompletion=completion.POOLS)]
ItemName = Annotated[str, typer.Argument(help="The name of the item.", metavar="ITEM")]
Secret = Annotated[
    str | None,
    typer.Option(
        "--secret",
        help="The admin secret, if HOLDFAST_ADMIN_SECRET is set; without it, the command asks on the terminal.",
        show_default=False,
    ),
]

Leave = Annotated[bool, typer.Option("--leave", help="Remove lent items when they are returned, instead of refusing.")]


@app.command("ls")
def list_pools(prefix: Prefix = "", url: Url = None, limit: Limit = 1000, as_json: Json = False) -> int:
    """List the pools, and how many of their items are lent, cooling and free.

    This command scans the engine. On a large server it takes a while, in small steps that block no other client.

    \b
    Example:
      holdfast pool ls
    """
    with connect(url, Capability.POOLS) as hf:
        hf._client.refuse_without(Capability.POOLS)  # "there are no pools" would mislead where none can exist
        names, more = hf._client.engine.names(prefix, limit, POOL)
        readable = run(hf._client.send_all([GetPoolStats(name, 0) for name in names]))
        known = [name for name, answer in zip(names, readable, strict=True) if answer is not None]
        found = [stats for name in known if (stats := hf.pool(name).stats(0)).size or stats.lent]
    if as_json:
        output.print_json({"pools": [_figures(stats) for stats in found], "more": more})
        return codes.OK
    columns = ("pool", *_FIGURES)
    rows = [(stats.name, *(getattr(stats, figure) for figure in _FIGURES)) for stats in found]
    output.listing("pools", columns, rows, prefix, limit if more else 0)
    return codes.OK


@app.command()
def show(name: PoolName, url: Url = None, limit: Limit = 1000, as_json: Json = False) -> int:
    """Show one pool: its items, their borrowers, and its waiting line.

    \b
    Example:
      holdfast pool show channels
    """
    checked_name(name)
    with connect(url, Capability.POOLS) as hf:
        stats = hf.pool(name).stats(limit)
    if not (stats.size or stats.lent or stats.cooling):
        raise NotFound(name, "items: there is no such pool")
    if as_json:
        items = [_item_json(item) for item in stats.items]
        waiters = [waiter._asdict() for waiter in stats.waiters]
        output.print_json({**_figures(stats), "items": items, "waiters": waiters, "trouble": stats.trouble})
        return codes.OK
    console = output.console()
    facts = [("pool", stats.name), *((figure, getattr(stats, figure)) for figure in _FIGURES)]
    console.print(output.facts([*facts, *([("trouble", stats.trouble)] if stats.trouble else [])]))
    if stats.items:
        rows = output.fitted(_COLUMNS, [_row(item) for item in stats.items], _SHRINK, console.width)
        console.print()
        console.print(output.table(_COLUMNS, rows, right=("since", "back in", "used", "fence")))
    if stats.waiters:
        waiting = [
            (place, f"{waiter.host}:{waiter.pid}", waiter.label) for place, waiter in enumerate(stats.waiters, 1)
        ]
        console.print()
        console.print(output.table(("waiting", "who", "label"), waiting, right=("waiting",)))
    if len(stats.items) < stats.lent + stats.cooling + stats.free and not stats.trouble:
        sys.stderr.write(f"holdfast: {len(stats.items)} of {stats.size} items are shown: give a larger --limit\n")
    return codes.OK


@app.command("set")
def set_items(
    name: PoolName,
    items: Annotated[
        list[str] | None,
        typer.Argument(help="All items of the pool; none deletes the pool; - reads them line by line.", metavar="ITEM"),
    ] = None,
    url: Url = None,
    leave: Leave = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation if there are no items.")
    ] = False,
    secret: Secret = None,
    as_json: Json = False,
) -> int:
    """Set the items of a pool: these and no others.

    The command does not take a lent item away: it changes nothing then, and names the items. An empty list deletes the
    pool; the command asks for confirmation, or needs --yes.

    \b
    Example:
      holdfast pool set channels alice bob carol
    """
    wanted = _read_items(items or ())
    _check_secret(secret)
    if not wanted and not yes and not _confirm_empty(name):
        return errors.report_cancelled(as_json=as_json, name=name)
    with connect_or_create(url) as hf:
        pool = hf.pool(name)
        leaving = pool.set_items(wanted, leave=leave)
        return _print_change(pool.stats(0), leaving, as_json=as_json)


@app.command()
def add(
    name: PoolName,
    items: Annotated[list[str], typer.Argument(help="The items to add; - reads them line by line.", metavar="ITEM")],
    url: Url = None,
    secret: Secret = None,
    as_json: Json = False,
) -> int:
    """Add items to a pool, and create the pool if there is none. Items that it already has stay as they are.

    \b
    Example:
      holdfast pool add channels dave erin
    """
    wanted = _read_items(items)
    _check_secret(secret)
    with connect_or_create(url) as hf:
        pool = hf.pool(name)
        pool.add(wanted)
        return _print_change(pool.stats(0), (), as_json=as_json)


@app.command()
def remove(
    name: PoolName,
    items: Annotated[list[str], typer.Argument(help="The items to remove; - reads them line by line.", metavar="ITEM")],
    url: Url = None,
    leave: Leave = False,
    secret: Secret = None,
    as_json: Json = False,
) -> int:
    """Remove items from a pool, all or none.

    The command does not take a lent item away: it changes nothing then, and names the items.

    \b
    Example:
      holdfast pool remove channels alice --leave
    """
    wanted = _read_items(items)
    _check_secret(secret)
    with connect(url, Capability.POOLS) as hf:
        pool = hf.pool(name)
        leaving = pool.remove(wanted, leave=leave)
        return _print_change(pool.stats(0), leaving, as_json=as_json)


@app.command()
def cool(
    name: PoolName,
    item: ItemName,
    seconds: Span,
    url: Url = None,
    secret: Secret = None,
    as_json: Json = False,
) -> int:
    """Start a cooldown of a free item: the pool does not lend it for a while. A duration of 0 ends its cooldown.

    \b
    Example:
      holdfast pool cool channels alice 60s
    """
    _check_secret(secret)
    with connect(url, Capability.POOLS) as hf:
        hf.pool(name).cool(item, seconds)
    if as_json:
        output.print_json({"pool": name, "item": item, "cooling": seconds})
    else:
        now = f"is not lent for {output.span(seconds)}" if seconds else "may be lent again"
        print_line(f"{plain(item)!r} of {plain(name)!r} {now}")
    return codes.OK


@app.command("break")
def break_item(
    name: PoolName,
    item: ItemName,
    reason: Annotated[str, typer.Option("--reason", help="Why: the borrower reads it in its LeaseLost.")],
    url: Url = None,
    yes: Yes = False,
    secret: Secret = None,
    as_json: Json = False,
) -> int:
    """End the lease of an item by force: the borrower gets LeaseLost, and the item cools down as after a crash.

    Safe only where the resource compares fences: the borrower may continue to work until its next renewal.

    \b
    Example:
      holdfast pool break channels alice --reason "worker 7 is stuck"
    """
    _check_secret(secret)
    with connect(url, Capability.POOLS) as hf:
        pool = hf.pool(name)
        found = run(pool._lent(item))
        facts = [("pool", name), *zip(_COLUMNS, _row(found), strict=True), ("reason", reason)]
        if not yes and not prompts.confirm_force(facts, "borrower", "Break it?"):
            return errors.report_cancelled(as_json=as_json, name=name, item=item)
        # Pass the fence, to break only the lease that the prompt showed. A borrower that came since then keeps the
        # item.
        run(pool._break_item(item, reason, found.fence))
        after = next((each for each in pool.stats().items if each.name == item), None)
    if as_json:
        now = _item_json(after) if after else None
        output.print_json({"pool": name, "broken": item, "reason": reason, "now": now})
    else:
        cooling = (
            f", and the item cools for {output.span(after.remaining)}" if after and after.state == "cooling" else ""
        )
        print_line(f"the lease of {plain(item)!r} of {plain(name)!r} is broken{cooling}; its borrower gets LeaseLost")
    return codes.OK


def _read_items(items: Sequence[str]) -> tuple[str, ...]:
    """Return the items of the command line; a single `-` stands for the lines of standard input."""
    if tuple(items) == ("-",):
        return tuple(line for line in sys.stdin.read().splitlines() if line)
    return tuple(items)


def _print_change(stats: PoolStats, leaving: Sequence[str], *, as_json: bool) -> int:
    if as_json:
        output.print_json({**_figures(stats), "leaving": list(leaving)})
        return codes.OK
    later = f"; {len(leaving)} more leave when they are returned" if leaving else ""
    print_line(f"{plain(stats.name)!r} has {stats.size} items{later}")
    return codes.OK


def _confirm_empty(name: str) -> bool:
    """Ask before an empty list deletes the pool and refuses all waiters: an empty variable may have caused the list."""
    if not sys.stdin.isatty():
        raise InvalidConfig("items", (), "no items delete the pool: add --yes if you want that")
    return prompts.confirm(f"No items: delete the pool {plain(name)!r}?")


def _check_secret(secret: str | None) -> None:
    """Compare the secret with HOLDFAST_ADMIN_SECRET if that is set; ask for it on a terminal."""
    wanted = os.environ.get(SECRET)
    if not wanted:
        return
    if secret is None and sys.stdin.isatty():
        secret = typer.prompt("admin secret", hide_input=True, err=True)
    if secret is None or not hmac.compare_digest(secret.encode(), wanted.encode()):
        raise NotPermitted("change a pool", f"{SECRET} is set here, and --secret does not match it")


def _figures(stats: PoolStats) -> dict[str, Any]:
    return {"pool": stats.name, **{figure: getattr(stats, figure) for figure in _FIGURES}}


def _item_json(item: ItemStatus) -> dict[str, Any]:
    return {**item._asdict(), "holder": None if item.holder is None else item.holder._asdict()}


def _row(item: ItemStatus) -> tuple[object, ...]:
    state = f"{item.state}, leaving" if item.leaving else item.state
    holder = ("-", "") if item.holder is None else (f"{item.holder.host}:{item.holder.pid}", item.holder.label)
    since = "never" if item.since is None else output.span(item.since)
    back = output.span(item.remaining) if item.state != "free" else ""
    return (item.name, state, *holder, since, back, item.used, item.fence or "")
