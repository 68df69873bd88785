"""What `holdfast queue` does. A queue that nobody has used is an empty one, so there is none that is not found."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from holdfast.cli import codes, looking, output
from holdfast.cli.plain import plain
from holdfast.cli.queue import bodies
from holdfast.commands.queue_admin import QUEUES
from holdfast.core.queue import queue as core_queue
from holdfast.core.step import run
from holdfast.engines import Capability
from holdfast.errors import InvalidConfig
from holdfast.names import checked_name

if TYPE_CHECKING:
    from holdfast.blocking import Queue
    from holdfast.core.queue.queue import ConsistencyReport, ConsumerStatus, PeekedMessage, QueueStats

_AT_ONCE = 500  # queues that are looked at in one exchange
_PLACES = ("ready", "suspects", "delayed", "in_flight", "behind", "dead", "consumers", "waiting")
_CONSUMERS = ("consumer", "process", "messages", "since", "left", "fence")
_MESSAGES = ("id", "key", "sent", "attempts", "crashes", "with", "due in", "body")


class Terms(NamedTuple):
    """How it is to be sent: what one message or many of them have in common."""

    delay: float
    key: str | None
    priority: str
    headers: tuple[str, ...]


class Letter(NamedTuple):
    """What is to be sent, as it was typed."""

    body: str
    text: bool
    dedup_key: str | None
    bound: int | None
    terms: Terms


def list_queues(url: str | None, prefix: str, *, limit: int, as_json: bool) -> int:
    with looking.connect(url, "queues") as hf:
        client = hf._client
        client.refuse_without(Capability.QUEUES)  # where there can be none, "there are none" would mislead
        names, more = client.engine.names(checked_name(prefix) if prefix else "", limit, QUEUES)
        parts = [names[first : first + _AT_ONCE] for first in range(0, len(names), _AT_ONCE)]
        found = [stats for part in parts for stats in run(core_queue.all_stats(client, part))]
    if as_json:
        output.print_json({"queues": [_figures(each) for each in found], "more": more})
        return codes.OK
    columns = ("queue", *(place.replace("_", " ") for place in _PLACES), "oldest")
    rows = [(each.name, *(getattr(each, place) for place in _PLACES), _age(each.oldest)) for each in found]
    output.listing("queues", columns, rows, prefix, limit if more else 0)
    return codes.OK


def _figures(now: QueueStats) -> dict[str, Any]:
    figures = now._asdict()
    return {"queue": figures.pop("name"), **figures}


def _age(seconds: float | None) -> str:
    return "" if seconds is None else output.span(seconds)


def stats(url: str | None, name: str, *, as_json: bool) -> int:
    with looking.connect(url, "queues") as hf:
        now = hf.queue(name).stats()
    if as_json:
        output.print_json(_figures(now))
        return codes.OK
    oldest = "-" if now.oldest is None else f"{output.span(now.oldest)} ago"
    due = "-" if now.next_due is None else f"in {output.span(now.next_due)}"
    facts = [("queue", now.name), *((place.replace("_", " "), getattr(now, place)) for place in _PLACES)]
    console = output.console()
    console.print(output.facts([*facts, ("oldest ready", oldest), ("next due", due)]))
    if now.counts:
        console.print()
        console.print(output.table(("counted", "messages"), sorted(now.counts.items()), right=("messages",)))
    return codes.OK


def consumers(url: str | None, name: str, *, limit: int, as_json: bool) -> int:
    with looking.connect(url, "queues") as hf:
        found = hf.queue(name).consumers(limit)
    if as_json:
        output.print_json({"queue": name, "consumers": [_consumer(each) for each in found]})
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
        output.console().print("nobody takes messages")
    return codes.OK


def peek(url: str | None, name: str, place: str, *, limit: int, as_json: bool) -> int:
    with looking.connect(url, "queues") as hf:
        queue = hf.queue(name)
        seen = queue.peek(place, limit)
        # By label: whoever knows the token of a consumer could speak for it.
        held = any(each.consumer for each in seen)
        labels = {each.token: each.label for each in queue.consumers(limit=10_000)} if held else {}
    if as_json:
        output.print_json({"queue": name, "place": place, "messages": [_message(each, labels) for each in seen]})
    elif seen:
        rows = [_row(each, labels) for each in seen]
        output.console().print(output.table(_MESSAGES, rows, right=("sent", "attempts", "crashes", "due in")))
    else:
        output.console().print(f"no message is {place.replace('_', ' ')}")
    return codes.OK


def publish(url: str | None, name: str, letter: Letter, *, as_json: bool) -> int:
    terms = letter.terms._asdict()
    terms["headers"] = dict(_header(each) for each in letter.terms.headers)
    many = letter.body == "-"
    if many and letter.dedup_key is not None:
        raise InvalidConfig(
            "--dedup-key", letter.dedup_key, "one key is for one message, and - sends one for each line"
        )
    lines = sys.stdin.read().splitlines() if many else [letter.body]
    sent = [_body(line, at, letter) for at, line in enumerate(lines, 1) if line or not many]
    with looking.connect_or_make(url) as hf:
        queue = hf.queue(name, bound=letter.bound)
        if many:
            ids = queue.publish_many(sent, **terms)
        else:
            ids = [queue.publish(sent[0], dedup_key=letter.dedup_key, **terms)]
    if as_json:
        output.print_json({"queue": name, "ids": ids})
    else:
        for each in ids:
            sys.stdout.write(f"{plain(each)}\n")
    return codes.OK


def check(url: str | None, name: str, *, as_json: bool) -> int:
    with looking.connect(url, "queues") as hf:
        found = _checked(hf.queue(name), as_json=as_json)
    if as_json:
        output.print_json({"queue": name, "sound": bool(found), "messages": found.messages, "faults": found.faults})
    else:
        console = output.console()
        for fault in found.faults:
            console.print(output.text(fault))
        if found:
            console.print(f"{found.messages} messages, each in exactly one place")
    return codes.OK if found else codes.ATTENTION


def _checked(queue: Queue, *, as_json: bool) -> ConsistencyReport:
    """Each message is looked at itself, and where it is; on a terminal, whoever waits sees how far that is."""
    if as_json or not sys.stderr.isatty():
        return queue.check()
    now = queue.stats()
    total = 2 * (now.ready + now.quarantined + now.delayed + now.in_flight + now.behind) + now.dead
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.console(sys.stderr)) as progress:
        bar = progress.add_task("looking", total=total)
        found = run(core_queue.check(queue, partial(progress.advance, bar)))
        progress.update(bar, completed=total)
    return found


def _body(line: str, at: int, letter: Letter) -> Any:
    if letter.text:
        return line
    try:
        return json.loads(line)
    except ValueError as error:
        raise InvalidConfig("body", line, f"line {at} is no JSON ({error}): --text sends it as it is") from error


def _header(pair: str) -> tuple[str, str]:
    name, found, value = pair.partition("=")
    if not found or not name:
        raise InvalidConfig("--header", pair, "it must be NAME=VALUE")
    return name, value


def _consumer(each: ConsumerStatus) -> dict[str, Any]:
    holder = each.holder
    return {
        "label": each.label,
        "owner": {"host": holder.host, "pid": holder.pid, "start": holder.start, "label": holder.label},
        "fence": each.fence,
        "in_flight": each.in_flight,
        "since": each.seconds,
        "remaining": each.remaining,
    }


def _message(each: PeekedMessage, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "id": each.id,
        **bodies.for_programs(each.body),
        "headers": each.headers,
        "key": each.key or None,
        "attempts": each.attempts,
        "crashes": each.crashes,
        "published": each.published,
        "consumer": labels.get(each.consumer) if each.consumer else None,
        "due": each.due,
    }


def _row(each: PeekedMessage, labels: dict[str, str]) -> tuple[object, ...]:
    sent = f"{output.span(bodies.ago(each.published))} ago"
    due = output.span(each.due) if each.due else ""
    return (
        each.id,
        each.key,
        sent,
        each.attempts,
        each.crashes,
        labels.get(each.consumer, ""),
        due,
        bodies.for_people(each.body),
    )
