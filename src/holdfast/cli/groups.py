"""Commands that come in groups, one for each feature: `holdfast limit …`, `holdfast directory …`. As in `app`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from holdfast.cli.options import Job, Json, Url

limits = typer.Typer(
    help="What a limit has counted for a key, and the way to start anew.\n\n\b\nExample:\n"
    '  holdfast limit show "10/second; 100/minute" ann --name logins',
    no_args_is_help=True,
)
Rate = Annotated[str, typer.Argument(help='The rate as the program has it, such as "10/second; 100/minute".')]
Key = Annotated[str, typer.Argument(help="The key: of a user, an address, a conversation.")]
LimitName = Annotated[str | None, typer.Option("--name", help="The limit's name.", show_default="the rate itself")]
Method = Annotated[str, typer.Option(help="How it counts: window or gcra.")]


@limits.command("show")
def show_limit(
    rate: Rate, key: Key, name: LimitName = None, method: Method = "window", url: Url = None, as_json: Json = False
) -> Job:
    """How much is left for a key. Counts nothing. Exit code 75: nothing is left just now.

    \b
    Example:
      holdfast limit show "10/second; 100/minute" ann --name logins
    """
    from holdfast.cli import limit  # noqa: PLC0415

    return partial(limit.show, url, limit.Asked(rate, key, name, method), as_json=as_json)


@limits.command("reset")
def reset_limit(
    rate: Rate, key: Key, name: LimitName = None, method: Method = "window", url: Url = None, as_json: Json = False
) -> Job:
    """Forget what was counted for a key. Processes that were just refused may believe it for a second more.

    \b
    Example:
      holdfast limit reset "10/second; 100/minute" ann --name logins
    """
    from holdfast.cli import limit  # noqa: PLC0415

    return partial(limit.reset, url, limit.Asked(rate, key, name, method), as_json=as_json)


directories = typer.Typer(help="Who owns which key of a directory, and the way out.", no_args_is_help=True)
Place = Annotated[str, typer.Argument(help="The directory's name.")]


@directories.command("ls")
def list_directory(
    name: Place,
    prefix: Annotated[str, typer.Argument(help="Only keys that begin so.", show_default=False)] = "",
    group: Annotated[str | None, typer.Option(help="Only keys of this group.", show_default=False)] = None,
    url: Url = None,
    as_json: Json = False,
) -> Job:
    """Which keys are owned, by whom, since when. It looks them up, and scans nothing.

    \b
    Example:
      holdfast directory ls conversations --group ann
    """
    from holdfast.cli import directory  # noqa: PLC0415

    return partial(directory.list_keys, url, name, prefix, group, as_json=as_json)


@directories.command("show")
def show_directory(name: Place, key: Key, url: Url = None, as_json: Json = False) -> Job:
    """Who owns a key, and who has joined it. Exit code 66: nobody owns it.

    \b
    Example:
      holdfast directory show conversations 42
    """
    from holdfast.cli import directory  # noqa: PLC0415

    return partial(directory.show, url, name, key, as_json=as_json)


@directories.command("take")
def take_directory(
    name: Place,
    key: Key,
    reason: Annotated[str, typer.Option("--reason", help="Why: the owner reads it in its LeaseLost.")],
    url: Url = None,
    as_json: Json = False,
) -> Job:
    """Take a key from its owner by force, so that another can claim it: the fence grows, the owner is told.

    \b
    Example:
      holdfast directory take conversations 42 --reason "server 7 is stuck"
    """
    from holdfast.cli import directory  # noqa: PLC0415

    return partial(directory.take, url, name, key, reason, as_json=as_json)


@directories.command("hand-off")
def hand_off_directory(
    name: Place,
    key: Key,
    to: Annotated[str, typer.Option("--to", help="The label of the server that is to have it.")],
    within: Annotated[float, typer.Option(help="Seconds for which nobody else can claim it.")] = 10.0,
    url: Url = None,
    as_json: Json = False,
) -> Job:
    """Take a key from its owner and keep it for another server: the owner is told, the fence grows.

    \b
    Example:
      holdfast directory hand-off conversations 42 --to "server 2"
    """
    from holdfast.cli import directory  # noqa: PLC0415

    return partial(directory.hand_off, url, name, key, to, within, as_json=as_json)
