"""What every command takes: where the leases live, and in which form to answer."""

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
        help="Where the leases live: redis://host, valkey://host, unix:///path, sqlite:///path. "
        "Without it, a SQLite file of this user on this host. A password is better kept in HOLDFAST_URL.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
