"""The words of `holdfast pool`. What they do is in `holdfast.cli.pool.deeds`, imported when one of them is called."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from holdfast.cli.options import Job, Json, Limit, Prefix, Url, Yes

pools = typer.Typer(
    help="Pools of items that are lent to one borrower each.\n\n\b\nExample:\n  holdfast pool show channels",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Pool = Annotated[str, typer.Argument(help="The name of the pool.", metavar="NAME")]
Item = Annotated[str, typer.Argument(help="The name of the item.", metavar="ITEM")]
Secret = Annotated[
    str | None,
    typer.Option(
        "--secret",
        help="The admin secret, where HOLDFAST_ADMIN_SECRET is set; without it, the terminal asks.",
        show_default=False,
    ),
]


@pools.command("ls")
def list_pools(prefix: Prefix = "", url: Url = None, limit: Limit = 1000, as_json: Json = False) -> Job:
    """Which pools there are, and how many of their items are lent, cooling and free.

    It scans: on a large server it takes its time, in steps that block nobody.

    \b
    Example:
      holdfast pool ls
    """
    from holdfast.cli.pool import deeds  # noqa: PLC0415

    return partial(deeds.list_pools, url, prefix, limit=limit, as_json=as_json)


@pools.command()
def show(name: Pool, url: Url = None, limit: Limit = 1000, as_json: Json = False) -> Job:
    """How one pool stands: its items, who has them, and who waits.

    \b
    Example:
      holdfast pool show channels
    """
    from holdfast.cli.pool import deeds  # noqa: PLC0415

    return partial(deeds.show, url, name, limit=limit, as_json=as_json)


@pools.command("set")
def set_items(
    name: Pool,
    items: Annotated[
        list[str] | None, typer.Argument(help="All of its items; none ends it; - reads lines.", metavar="ITEM")
    ] = None,
    url: Url = None,
    leave: Annotated[
        bool, typer.Option("--leave", help="Items that are lent go when they come back, instead of a refusal.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether no items are meant.")] = False,
    secret: Secret = None,
    as_json: Json = False,
) -> Job:
    """Have these items and no others.

    An item that is lent is not taken away: nothing is changed then, and the items are named. No items at all end the
    pool: that is asked for, or needs --yes.

    \b
    Example:
      holdfast pool set channels alice bob carol
    """
    from holdfast.cli.pool import deeds  # noqa: PLC0415

    wanted = tuple(items or ())
    return partial(deeds.set_items, url, name, wanted, leave=leave, yes=yes, secret=secret, as_json=as_json)


@pools.command()
def cool(
    name: Pool,
    item: Item,
    seconds: Annotated[float, typer.Argument(help="For how long from now; 0 ends its cooldown.", metavar="SECONDS")],
    url: Url = None,
    secret: Secret = None,
    as_json: Json = False,
) -> Job:
    """Keep an item that nobody has from everybody for a while.

    \b
    Example:
      holdfast pool cool channels alice 60
    """
    from holdfast.cli.pool import deeds  # noqa: PLC0415

    return partial(deeds.cool, url, name, item, seconds, secret=secret, as_json=as_json)


@pools.command("break")
def break_item(
    name: Pool,
    item: Item,
    reason: Annotated[str, typer.Option("--reason", help="Why: the borrower reads it in its LeaseLost.")],
    url: Url = None,
    yes: Yes = False,
    secret: Secret = None,
    as_json: Json = False,
) -> Job:
    """End the lease of an item by force: its borrower is told, and the item rests as after a death.

    Safe only where the resource compares fences: the borrower may be at work until it hears of it.

    \b
    Example:
      holdfast pool break channels alice --reason "worker 7 is stuck"
    """
    from holdfast.cli.pool import deeds  # noqa: PLC0415

    return partial(deeds.break_item, url, name, item, reason, yes=yes, secret=secret, as_json=as_json)
