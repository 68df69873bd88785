"""`holdfast limit`: show what a rate limit has counted for a key, and reset it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import codes, output
from holdfast.cli.connect import connect
from holdfast.cli.lazy import CommandGroup
from holdfast.cli.options import Json, Url
from holdfast.cli.output import plain, print_line
from holdfast.core.step import run
from holdfast.engines import Capability
from holdfast.names import name_of

if TYPE_CHECKING:
    from holdfast.blocking import Holdfast, RateLimiter

app = CommandGroup(
    "Show what a rate limit has counted for a key, and reset it.\n\n\b\nExample:\n"
    '  holdfast limit show "10/second; 100/minute" ann --name logins'
)

Rate = Annotated[
    str, typer.Argument(help='The rate as in the program, such as "10/second; 100/minute".', metavar="RATE")
]
Key = Annotated[str, typer.Argument(help="The key that is counted: a user, an address.", metavar="KEY")]
LimitName = Annotated[
    str | None, typer.Option("--name", help="The name of the rate limit.", show_default="the rate itself")
]
Method = Annotated[str, typer.Option(help="How the limit counts: window or gcra.")]


@app.command()
def show(
    rate: Rate, key: Key, name: LimitName = None, method: Method = "window", url: Url = None, as_json: Json = False
) -> int:
    """Show how much of a rate limit is left for a key, without counting. Exit code 75: nothing is left now.

    \b
    Example:
      holdfast limit show "10/second; 100/minute" ann --name logins
    """
    with connect(url, Capability.LIMITS) as hf:
        limiter = _limiter(hf, rate, key, name, method)
        decision = run(limiter._peek_engine(key))
    if as_json:
        output.print_json({"name": limiter.name, "key": key, "rate": rate, **decision._asdict()})
    else:
        lines: list[tuple[str, object]] = [
            ("limit", limiter.name),
            ("key", key),
            ("left", f"{decision.remaining} of {decision.limit}"),
            ("all free in", output.span(decision.reset_after)),
        ]
        if not decision.allowed:
            lines.append(("next in", output.span(decision.retry_after)))
        output.console().print(output.facts(lines))
    return codes.OK if decision.allowed else codes.BUSY


@app.command()
def reset(
    rate: Rate, key: Key, name: LimitName = None, method: Method = "window", url: Url = None, as_json: Json = False
) -> int:
    """Reset the count of a key. A process that was refused just now may keep refusing for up to a second.

    \b
    Example:
      holdfast limit reset "10/second; 100/minute" ann --name logins
    """
    with connect(url, Capability.LIMITS) as hf:
        limiter = _limiter(hf, rate, key, name, method)
        limiter.reset(key)
    if as_json:
        output.print_json({"name": limiter.name, "key": key, "reset": True})
    else:
        print_line(f"{plain(limiter.name)!r}: the count of {plain(key)!r} is reset")
    return codes.OK


def _limiter(hf: Holdfast, rate: str, key: str, name: str | None, method: str) -> RateLimiter:
    limiter = hf.limit(rate, name=name, method=method, on_unavailable="deny")
    name_of(limiter.name, key)  # refuses a bad key before any I/O
    return limiter
