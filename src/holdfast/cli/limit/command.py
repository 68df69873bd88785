"""The words of `holdfast limit`. What they do is in `holdfast.cli.limit.deeds`, imported when one of them is called."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from holdfast.cli.options import Job, Json, Url

limits = typer.Typer(
    help="What a limit has counted for a key, and the way to start anew.\n\n\b\nExample:\n"
    '  holdfast limit show "10/second; 100/minute" ann --name logins',
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Rate = Annotated[
    str, typer.Argument(help='The rate as the program has it, such as "10/second; 100/minute".', metavar="RATE")
]
Key = Annotated[str, typer.Argument(help="The key that is counted: a user, an address.", metavar="KEY")]
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
    from holdfast.cli.limit import deeds  # noqa: PLC0415

    return partial(deeds.show, url, deeds.Asked(rate, key, name, method), as_json=as_json)


@limits.command("reset")
def reset_limit(
    rate: Rate, key: Key, name: LimitName = None, method: Method = "window", url: Url = None, as_json: Json = False
) -> Job:
    """Forget what was counted for a key. Processes that were just refused may believe it for a second more.

    \b
    Example:
      holdfast limit reset "10/second; 100/minute" ann --name logins
    """
    from holdfast.cli.limit import deeds  # noqa: PLC0415

    return partial(deeds.reset, url, deeds.Asked(rate, key, name, method), as_json=as_json)
