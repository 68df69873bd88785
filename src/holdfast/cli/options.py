"""Options that several commands take, in one form each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

Job = Callable[[], int]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="HOLDFAST_URL",
        help="Where the leases live: redis://host, redis+sentinel://h1,h2/service, redis+cluster://h1,h2, valkey://, "
        "rediss://, unix:///path, sqlite:///path, file:///directory. "
        "Without it, a SQLite file of this user on this host. A password is better kept in HOLDFAST_URL.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Name = Annotated[str, typer.Argument(help="The name of the lease.", metavar="NAME")]
Prefix = Annotated[str, typer.Argument(help="Only names that begin so.", metavar="PREFIX", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many names.")]
All = Annotated[bool, typer.Option("--all", help="Also names that nobody holds, remembered for their last fence.")]
