"""`holdfast queue`: list queues, show their messages and consumers, publish, and check a queue.

These commands report an unknown queue as empty; they never answer "not found".
"""

from __future__ import annotations

import base64
import json
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from holdfast.cli import codes, output
from holdfast.cli.connect import connect, connect_or_create
from holdfast.cli.lazy import CommandGroup
from holdfast.cli.options import Json, Limit, PageLimit, Prefix, QueueName, Url, duration
from holdfast.cli.output import plain
from holdfast.commands.queue_admin import QUEUES
from holdfast.core.queue import queue as core_queue
from holdfast.core.step import run
from holdfast.engines import Capability
from holdfast.errors import InvalidConfig
from holdfast.names import checked_name
from holdfast.text import size_of

if TYPE_CHECKING:
    from holdfast.blocking import Queue
    from holdfast.core.queue.queue import ConsistencyReport, ConsumerStatus, PeekedMessage, QueueStats

_AT_ONCE = 500  # queues per exchange with the engine
_SHOWN = 60  # characters of a body in a table
_FIGURES = ("ready", "quarantined", "delayed", "in_flight", "behind", "dead", "consumers", "waiting")
_CONSUMERS = ("consumer", "process", "messages", "since", "left", "fence")
_MESSAGES = ("id", "key", "sent", "attempts", "crashes", "with", "due in", "body")

app = CommandGroup(
    "Show queues, their messages and their consumers, and publish messages.\n\n"
    "\b\nExample:\n  holdfast queue stats jobs"
)


@app.command("ls")
def list_queues(prefix: Prefix = "", url: Url = None, limit: Limit = 1000, as_json: Json = False) -> int:
    """List the queues, the number of messages in each state, and the number of consumers.

    This command scans the engine. On a large server it takes a while, in small steps that block no other client.

    \b
    Example:
      holdfast queue ls
    """
    with connect(url, Capability.QUEUES) as hf:
        client = hf._client
        client.refuse_without(Capability.QUEUES)  # "there are no queues" would mislead where none can exist
        names, more = client.engine.names(checked_name(prefix) if prefix else "", limit, QUEUES)
        parts = [names[first : first + _AT_ONCE] for first in range(0, len(names), _AT_ONCE)]
        found = [stats for part in parts for stats in run(core_queue.all_stats(client, part))]
    if as_json:
        output.print_json({"queues": [_figures(each) for each in found], "more": more})
        return codes.OK
    columns = ("queue", *(figure.replace("_", " ") for figure in _FIGURES), "oldest")
    rows = [(each.name, *(getattr(each, figure) for figure in _FIGURES), _age(each.oldest)) for each in found]
    output.listing("queues", columns, rows, prefix, limit if more else 0)
    return codes.OK


@app.command()
def stats(name: QueueName, url: Url = None, as_json: Json = False) -> int:
    """Show the number of messages in each state, the consumers, and the counters since the queue began.

    \b
    Example:
      holdfast queue stats jobs
    """
    with connect(url, Capability.QUEUES) as hf:
        now = hf.queue(name).stats()
    if as_json:
        output.print_json(_figures(now))
        return codes.OK
    oldest = "-" if now.oldest is None else f"{output.span(now.oldest)} ago"
    due = "-" if now.next_due is None else f"in {output.span(now.next_due)}"
    facts = [("queue", now.name), *((figure.replace("_", " "), getattr(now, figure)) for figure in _FIGURES)]
    console = output.console()
    console.print(output.facts([*facts, ("oldest ready", oldest), ("next due", due)]))
    if now.counts:
        console.print()
        console.print(output.table(("counted", "messages"), sorted(now.counts.items()), right=("messages",)))
    return codes.OK


@app.command()
def consumers(name: QueueName, url: Url = None, limit: PageLimit = 1000, as_json: Json = False) -> int:
    """List the consumers: their messages in flight, and how long each session lasts without a heartbeat.

    \b
    Example:
      holdfast queue consumers jobs
    """
    with connect(url, Capability.QUEUES) as hf:
        found = hf.queue(name).consumers(limit)
    if as_json:
        output.print_json({"queue": name, "consumers": [_consumer_json(each) for each in found]})
    elif found:
        rows = [
            (
                each.label,
                f"{each.holder.host}:{each.holder.pid}",
                each.in_flight,
                output.span(each.seconds),
                output.span(each.remaining) if each.remaining else "late",
                each.fence,
            )
            for each in found
        ]
        output.console().print(output.table(_CONSUMERS, rows, right=_CONSUMERS[2:]))
    else:
        output.console().print("the queue has no consumers")
    return codes.OK


@app.command()
def peek(
    name: QueueName,
    url: Url = None,
    place: Annotated[str, typer.Option("--place", help="ready, delayed, in_flight or behind.")] = "ready",
    limit: PageLimit = 10,
    as_json: Json = False,
) -> int:
    """Show the first messages in a state without receiving them.

    \b
    Example:
      holdfast queue peek jobs --place delayed
    """
    with connect(url, Capability.QUEUES) as hf:
        queue = hf.queue(name)
        found = queue.peek(place, limit)
        # Show consumers by their labels: a process that knows a consumer's token could act in its name.
        received = any(each.consumer for each in found)
        labels = {each.token: each.label for each in queue.consumers(limit=10_000)} if received else {}
    if as_json:
        output.print_json({"queue": name, "place": place, "messages": [_message_json(each, labels) for each in found]})
    elif found:
        rows = [_row(each, labels) for each in found]
        output.console().print(output.table(_MESSAGES, rows, right=("sent", "attempts", "crashes", "due in")))
    else:
        output.console().print(f"no message is {place.replace('_', ' ')}")
    return codes.OK


@app.command()
def publish(
    name: QueueName,
    body: Annotated[
        str, typer.Argument(help="The body, as JSON; - reads one body per line of standard input.", metavar="BODY")
    ],
    url: Url = None,
    text: Annotated[bool, typer.Option("--text", help="The body is text, not JSON.")] = False,
    delay: Annotated[float, duration("How long before a consumer may receive it.")] = 0.0,
    dedup_key: Annotated[
        str | None, typer.Option("--dedup-key", help="Publish only if this idempotency key was not used recently.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Deliver only after all earlier messages of the same key.")
    ] = None,
    priority: Annotated[str, typer.Option("--priority", help="high, normal or low.")] = "normal",
    header: Annotated[
        list[str] | None, typer.Option("--header", help="NAME=VALUE; may be given several times.")
    ] = None,
    bound: Annotated[
        int | None,
        typer.Option(min=1, help="Refuse if the queue would hold more messages.", show_default="no bound"),
    ] = None,
    as_json: Json = False,
) -> int:
    """Publish a message, or one message per line.

    \b
    Example:
      holdfast queue publish jobs '{"order": 42}' --delay 60
      holdfast queue publish sessions '{"user": "ann"}' --key chat-42 --priority high
    """
    options: dict[str, Any] = {
        "delay": delay,
        "key": key,
        "priority": priority,
        "headers": dict(_header(each) for each in header or ()),
    }
    many = body == "-"
    if many and dedup_key is not None:
        raise InvalidConfig("--dedup-key", dedup_key, "one key is for one message, and - publishes one for each line")
    lines = sys.stdin.read().splitlines() if many else [body]
    bodies = [line if text else _decoded(line, number) for number, line in enumerate(lines, 1) if line or not many]
    with connect_or_create(url) as hf:
        queue = hf.queue(name, bound=bound)
        if many:
            ids = queue.publish_many(bodies, **options)
        else:
            ids = [queue.publish(bodies[0], dedup_key=dedup_key, **options)]
    if as_json:
        output.print_json({"queue": name, "ids": ids})
    else:
        for each in ids:
            sys.stdout.write(f"{plain(each)}\n")
    return codes.OK


@app.command()
def check(name: QueueName, url: Url = None, as_json: Json = False) -> int:
    """Check that every message is in exactly one place: exit code 0 if so, 1 if not.

    The command reads every message, in small steps that block no other client.

    \b
    Example:
      holdfast queue check jobs
    """
    with connect(url, Capability.QUEUES) as hf:
        report = _checked(hf.queue(name), as_json=as_json)
    if as_json:
        found = {"consistent": bool(report), "messages": report.messages, "faults": report.faults}
        output.print_json({"queue": name, **found})
    else:
        console = output.console()
        for fault in report.faults:
            console.print(output.text(fault))
        if report:
            console.print(f"{report.messages} messages, each in exactly one place")
    return codes.OK if report else codes.ATTENTION


def body_json(body: Any) -> dict[str, Any]:
    """Return a body for programs; JSON cannot carry bytes, so they are in base64."""
    if isinstance(body, bytes):
        return {"body": None, "base64": base64.b64encode(body).decode()}
    return {"body": body}


def body_line(body: Any, most: int = _SHOWN) -> str:
    """Return a body for people: one line of at most `most` characters."""
    text = repr(body) if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def age(seconds: float) -> float:
    """Return how many seconds ago a time since 1970 was, by the clock of this machine."""
    return max(0.0, time.time() - seconds)


def _checked(queue: Queue, *, as_json: bool) -> ConsistencyReport:
    """Check the queue; on a terminal, show the progress.

    The check reads each message twice: the message itself, and the place where it is.
    """
    if as_json or not sys.stderr.isatty():
        return queue.check()
    now = queue.stats()
    total = 2 * (now.ready + now.quarantined + now.delayed + now.in_flight + now.behind) + now.dead
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.console(sys.stderr)) as progress:
        bar = progress.add_task("checking", total=total)
        report = run(queue._core.check(partial(progress.advance, bar)))
        progress.update(bar, completed=total)
    return report


def _decoded(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        rule = f"line {number} is not JSON ({error}): --text publishes it as text"
        raise InvalidConfig("body", size_of(line), rule) from None


def _header(pair: str) -> tuple[str, str]:
    name, found, value = pair.partition("=")
    if not found or not name:
        raise InvalidConfig("--header", size_of(pair), "it must be NAME=VALUE")
    return name, value


def _figures(now: QueueStats) -> dict[str, Any]:
    figures = now._asdict()
    return {"queue": figures.pop("name"), **figures}


def _age(seconds: float | None) -> str:
    return "" if seconds is None else output.span(seconds)


def _consumer_json(each: ConsumerStatus) -> dict[str, Any]:
    holder = each.holder
    return {
        "label": each.label,
        "holder": {"host": holder.host, "pid": holder.pid, "start": holder.start, "label": holder.label},
        "fence": each.fence,
        "in_flight": each.in_flight,
        "since": each.seconds,
        "remaining": each.remaining,
    }


def _message_json(each: PeekedMessage, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "id": each.id,
        **body_json(each.body),
        "headers": each.headers,
        "key": each.key or None,
        "attempts": each.attempts,
        "crashes": each.crashes,
        "published": each.published,
        "consumer": labels.get(each.consumer) if each.consumer else None,
        "due": each.due,
    }


def _row(each: PeekedMessage, labels: dict[str, str]) -> tuple[object, ...]:
    sent = f"{output.span(age(each.published))} ago"
    due = output.span(each.due) if each.due else ""
    consumer = labels.get(each.consumer, "")
    return (each.id, each.key, sent, each.attempts, each.crashes, consumer, due, body_line(each.body))
