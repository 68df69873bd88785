"""The words of `holdfast queue`. What they do is in `holdfast.cli.queue.deeds`, imported when one of them is called."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from holdfast.cli.options import Job, Json, Limit, Prefix, Url

queues = typer.Typer(
    help="Queues of messages, each for one consumer at a time.\n\n\b\nExample:\n  holdfast queue stats jobs",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Queue = Annotated[str, typer.Argument(help="The name of the queue.", metavar="NAME")]
AtMost = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")]


@queues.command("ls")
def list_queues(prefix: Prefix = "", url: Url = None, limit: Limit = 1000, as_json: Json = False) -> Job:
    """Which queues there are, how many messages of each are where, and who works on them.

    It scans: on a large server it takes its time, in steps that block nobody.

    \b
    Example:
      holdfast queue ls
    """
    from holdfast.cli.queue import deeds  # noqa: PLC0415

    return partial(deeds.list_queues, url, prefix, limit=limit, as_json=as_json)


@queues.command()
def stats(name: Queue, url: Url = None, as_json: Json = False) -> Job:
    """How many messages are where, who is there, and what was counted since the queue began.

    \b
    Example:
      holdfast queue stats jobs
    """
    from holdfast.cli.queue import deeds  # noqa: PLC0415

    return partial(deeds.stats, url, name, as_json=as_json)


@queues.command()
def consumers(name: Queue, url: Url = None, limit: AtMost = 1000, as_json: Json = False) -> Job:
    """Who takes messages, how many each has, and how long each is trusted without a word.

    \b
    Example:
      holdfast queue consumers jobs
    """
    from holdfast.cli.queue import deeds  # noqa: PLC0415

    return partial(deeds.consumers, url, name, limit=limit, as_json=as_json)


@queues.command()
def peek(
    name: Queue,
    url: Url = None,
    place: Annotated[str, typer.Option("--place", help="ready, delayed, in_flight or behind.")] = "ready",
    limit: AtMost = 10,
    as_json: Json = False,
) -> Job:
    """The first messages of a place, left where they are.

    \b
    Example:
      holdfast queue peek jobs --place delayed
    """
    from holdfast.cli.queue import deeds  # noqa: PLC0415

    return partial(deeds.peek, url, name, place, limit=limit, as_json=as_json)


@queues.command()
def publish(
    name: Queue,
    body: Annotated[
        str, typer.Argument(help="The body, as JSON; - reads one from each line of standard input.", metavar="BODY")
    ],
    url: Url = None,
    text: Annotated[bool, typer.Option("--text", help="The body is text, not JSON.")] = False,
    delay: Annotated[float, typer.Option(min=0, help="Seconds before it may be taken.")] = 0.0,
    dedup_key: Annotated[
        str | None, typer.Option("--dedup-key", help="Send it only if this key was not used lately.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Hand it out only after all that were sent with the same key.")
    ] = None,
    priority: Annotated[str, typer.Option("--priority", help="high, normal or low.")] = "normal",
    header: Annotated[list[str] | None, typer.Option("--header", help="NAME=VALUE; may be given often.")] = None,
    bound: Annotated[
        int | None, typer.Option(min=1, help="Refuse if the queue would have more.", show_default="no bound")
    ] = None,
    as_json: Json = False,
) -> Job:
    """Send a message, or one for each line.

    \b
    Example:
      holdfast queue publish jobs '{"order": 42}' --delay 60
      holdfast queue publish sessions '{"user": "ann"}' --key chat-42 --priority high
    """
    from holdfast.cli.queue import deeds  # noqa: PLC0415

    terms = deeds.Terms(delay, key, priority, tuple(header or ()))
    letter = deeds.Letter(body, text, dedup_key, bound, terms)
    return partial(deeds.publish, url, name, letter, as_json=as_json)


@queues.command()
def check(name: Queue, url: Url = None, as_json: Json = False) -> Job:
    """Whether every message is in exactly one place: exit code 0 if it is, 1 if not.

    It looks at every message, in small steps: others are served meanwhile.

    \b
    Example:
      holdfast queue check jobs
    """
    from holdfast.cli.queue import deeds  # noqa: PLC0415

    return partial(deeds.check, url, name, as_json=as_json)
