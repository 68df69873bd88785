"""Options and arguments that several commands take, each defined once."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any

import typer

from holdfast.cli import completion
from holdfast.clock import parsed_seconds
from holdfast.errors import InvalidConfig

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="HOLDFAST_URL",
        help="Where the leases are stored: redis://host, redis+sentinel://h1,h2/service, redis+cluster://h1,h2, "
        "valkey://, rediss://, unix:///path, sqlite:///path, file:///directory. "
        "The default is a SQLite file of this user on this host. Keep a password in HOLDFAST_URL, not in the option.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Name = Annotated[str, typer.Argument(help="The name of the lease.", metavar="NAME", autocompletion=completion.LEASES)]
Prefix = Annotated[
    str,
    typer.Argument(
        help="Only names that begin with this text.",
        metavar="PREFIX",
        show_default=False,
        autocompletion=completion.LEASES,
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="The maximum number of names.")]
PageLimit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The maximum number of lines.")]
All = Annotated[
    bool, typer.Option("--all", help="Also list names without a holder; the engine remembers their last fence.")
]
QueueName = Annotated[
    str, typer.Argument(help="The name of the queue.", metavar="NAME", autocompletion=completion.QUEUES)
]


def duration(
    text: str, *names: str, least: float = 0.0, most: float = math.inf, show_default: str | bool = True
) -> Any:
    """Return an option that takes a duration, such as `30s`; `text` is its help, `least` and `most` are in seconds."""
    read = partial(_read_duration, least=least, most=most)
    return typer.Option(*names, parser=read, metavar="DURATION", help=text, show_default=show_default)


def _read_duration(value: str | float, least: float = 0.0, most: float = math.inf) -> float:
    if isinstance(value, float):
        return value  # the default
    try:
        seconds = parsed_seconds(value, setting="duration")
    except InvalidConfig as error:
        raise typer.BadParameter(f"{value!r} is refused: {error.rule}") from None
    if not least <= seconds <= most:
        bound = f"at least {least:g}s" + (f" and at most {most:g}s" if most < math.inf else "")
        raise typer.BadParameter(f"{value!r} is refused: it must be {bound}")
    return seconds


Interval = Annotated[float, duration("The time between two queries.", least=0.1)]
# An argument, not an option: `holdfast pool cool NAME ITEM 60s`.
Span = Annotated[float, typer.Argument(parser=_read_duration, metavar="DURATION", help="How long, such as 60s or 5m.")]
