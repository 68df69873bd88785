"""The words of `holdfast dlq`. What they do is in `holdfast.cli.dlq.deeds`, imported when one of them is called."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from holdfast.cli.options import Job, Json, Url, Yes

letters = typer.Typer(
    help="Dead letters: messages that failed for good, kept with the reason.\n\n\b\nExample:\n  holdfast dlq ls jobs",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Queue = Annotated[str, typer.Argument(help="The name of the queue.", metavar="NAME")]
Ids = Annotated[
    list[str] | None, typer.Argument(help="Ids of messages; without any, all.", metavar="ID", show_default=False)
]
Reason = Annotated[
    str | None, typer.Option("--reason", help="Only those whose reason or error has this in it.", show_default=False)
]


@letters.command("ls")
def list_letters(
    name: Queue,
    url: Url = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")] = 100,
    after: Annotated[str, typer.Option("--after", help="Go on behind this place (see --json).")] = "",
    as_json: Json = False,
) -> Job:
    """The dead letters of a queue, the oldest death first.

    \b
    Example:
      holdfast dlq ls jobs
    """
    from holdfast.cli.dlq import deeds  # noqa: PLC0415

    return partial(deeds.list_letters, url, name, limit=limit, after=after, as_json=as_json)


@letters.command()
def show(
    name: Queue,
    message: Annotated[str, typer.Argument(help="The id of the message.", metavar="ID")],
    url: Url = None,
    as_json: Json = False,
) -> Job:
    """All that is known of one dead letter.

    \b
    Example:
      holdfast dlq show jobs 0f3c9a
    """
    from holdfast.cli.dlq import deeds  # noqa: PLC0415

    return partial(deeds.show, url, name, message, as_json=as_json)


@letters.command()
def redrive(
    name: Queue,
    ids: Ids = None,
    url: Url = None,
    reason: Reason = None,
    rate: Annotated[
        float | None, typer.Option(min=0.01, help="At most so many per second.", show_default="no bound")
    ] = None,
    keep_attempts: Annotated[bool, typer.Option("--keep-attempts", help="Attempts that were used stay used.")] = False,
    as_json: Json = False,
) -> Job:
    """Make dead letters messages again: these, or all that there are now.

    \b
    Example:
      holdfast dlq redrive jobs --reason timeout --rate 50
    """
    from holdfast.cli.dlq import deeds  # noqa: PLC0415

    chosen = deeds.Chosen(tuple(ids or ()), reason, None)
    return partial(deeds.redrive, url, name, chosen, rate=rate, reset=not keep_attempts, as_json=as_json)


@letters.command()
def purge(
    name: Queue,
    ids: Ids = None,
    url: Url = None,
    reason: Reason = None,
    older: Annotated[
        float | None, typer.Option(min=0, help="Only those that died so many seconds ago.", show_default="any")
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> Job:
    """Forget dead letters for good: these, or all that there are now. It asks first.

    \b
    Example:
      holdfast dlq purge jobs --older 604800
    """
    from holdfast.cli.dlq import deeds  # noqa: PLC0415

    return partial(deeds.purge, url, name, deeds.Chosen(tuple(ids or ()), reason, older), yes=yes, as_json=as_json)
