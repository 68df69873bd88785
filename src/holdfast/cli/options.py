"""Options and arguments that several commands take, each defined once."""

from __future__ import annotations

from typing import Annotated

import typer

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
Name = Annotated[str, typer.Argument(help="The name of the lease.", metavar="NAME")]
Prefix = Annotated[
    str, typer.Argument(help="Only names that begin with this text.", metavar="PREFIX", show_default=False)
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="The maximum number of names.")]
PageLimit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The maximum number of lines.")]
All = Annotated[
    bool, typer.Option("--all", help="Also list names without a holder; the engine remembers their last fence.")
]
Interval = Annotated[float, typer.Option(min=0.1, help="Seconds between two queries.")]
QueueName = Annotated[str, typer.Argument(help="The name of the queue.", metavar="NAME")]
