"""The words of `holdfast directory`. What they do is in `holdfast.cli.directory.deeds`, imported when one is called."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from holdfast.cli.options import Job, Json, Url, Yes

directories = typer.Typer(
    help="Who owns which key of a directory, and the way out.",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Key = Annotated[str, typer.Argument(help="The key: of a user, an address, a conversation.", metavar="KEY")]
Place = Annotated[str, typer.Argument(help="The directory's name.", metavar="NAME")]


@directories.command("ls")
def list_directory(
    name: Place,
    prefix: Annotated[str, typer.Argument(help="Only keys that begin so.", metavar="PREFIX", show_default=False)] = "",
    group: Annotated[str | None, typer.Option(help="Only keys of this group.", show_default=False)] = None,
    url: Url = None,
    as_json: Json = False,
) -> Job:
    """Which keys are owned, by whom, since when. It looks them up, and scans nothing.

    \b
    Example:
      holdfast directory ls conversations --group ann
    """
    from holdfast.cli.directory import deeds  # noqa: PLC0415

    return partial(deeds.list_keys, url, name, prefix, group, as_json=as_json)


@directories.command("show")
def show_directory(name: Place, key: Key, url: Url = None, as_json: Json = False) -> Job:
    """Who owns a key, and who has joined it. Exit code 66: nobody owns it.

    \b
    Example:
      holdfast directory show conversations 42
    """
    from holdfast.cli.directory import deeds  # noqa: PLC0415

    return partial(deeds.show, url, name, key, as_json=as_json)


@directories.command("take")
def take_directory(
    name: Place,
    key: Key,
    reason: Annotated[str, typer.Option("--reason", help="Why: the owner reads it in its LeaseLost.")],
    url: Url = None,
    yes: Yes = False,
    as_json: Json = False,
) -> Job:
    """Take a key from its owner by force, so that another can claim it: the fence grows, the owner is told.

    Safe only where the resource compares fences: the owner may be at work until it hears of it.

    \b
    Example:
      holdfast directory take conversations 42 --reason "server 7 is stuck"
    """
    from holdfast.cli.directory import deeds  # noqa: PLC0415

    return partial(deeds.take, url, name, key, reason, yes=yes, as_json=as_json)


@directories.command("hand-off")
def hand_off_directory(
    name: Place,
    key: Key,
    to: Annotated[str, typer.Option("--to", help="The label of the server that is to have it.")],
    within: Annotated[float, typer.Option(help="Seconds for which nobody else can claim it.")] = 10.0,
    url: Url = None,
    yes: Yes = False,
    as_json: Json = False,
) -> Job:
    """Take a key from its owner and keep it for another server: the owner is told, the fence grows.

    Safe only where the resource compares fences: the owner may be at work until it hears of it.

    \b
    Example:
      holdfast directory hand-off conversations 42 --to "server 2"
    """
    from holdfast.cli.directory import deeds  # noqa: PLC0415

    return partial(deeds.hand_off, url, name, key, to, within, yes=yes, as_json=as_json)
