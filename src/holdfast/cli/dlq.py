"""`holdfast dlq`: list, show, redrive and purge the dead letters of a queue.

"All" means the dead letters that exist when the command starts: `redrive` does not redrive a message a second time that
dies again meanwhile.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from holdfast.cli import codes, errors, output, prompts
from holdfast.cli.connect import connect
from holdfast.cli.lazy import CommandGroup
from holdfast.cli.options import Json, PageLimit, QueueName, Url, Yes, duration
from holdfast.cli.output import plain
from holdfast.cli.queue import age, body_json, body_line
from holdfast.engines import Capability
from holdfast.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.blocking import DeadLetterQueue
    from holdfast.core.queue.dlq import DeadLetter

_AT_ONCE = 128
_COLUMNS = ("id", "key", "died", "attempts", "last with", "reason", "error", "body")
_SHRINK = (("error", 12), ("body", 8), ("last with", 8), ("reason", 12), ("key", 8))

app = CommandGroup(
    "List and redrive dead letters: messages that failed for good, kept with the reason.\n\n"
    "\b\nExample:\n  holdfast dlq ls jobs"
)

Ids = Annotated[
    list[str] | None, typer.Argument(help="Ids of messages; the default is all.", metavar="ID", show_default=False)
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", help="Only dead letters whose reason or error contains this text.", show_default=False),
]


class Selection(NamedTuple):
    """The dead letters that a command applies to: these ids, or all; of them, those with this text and this age."""

    ids: tuple[str, ...]
    reason: str | None
    older: float | None

    def matches(self, dead: DeadLetter) -> bool:
        """Return whether the dead letter has the text and the age."""
        has_text = self.reason is None or self.reason in dead.reason or self.reason in dead.error
        return has_text and (self.older is None or age(dead.died) >= self.older)


@app.command("ls")
def list_dead(
    name: QueueName,
    url: Url = None,
    limit: PageLimit = 100,
    after: Annotated[str, typer.Option("--after", help="Continue after this position (see --json).")] = "",
    as_json: Json = False,
) -> int:
    """List the dead letters of a queue, the oldest first.

    \b
    Example:
      holdfast dlq ls jobs
    """
    with connect(url, Capability.QUEUES) as hf:
        queue = hf.queue(name)
        found, total = queue.dlq.list(limit, after), queue.stats().dead
    if as_json:
        output.print_json({"queue": name, "dead": total, "dead_letters": [_dead_json(each) for each in found]})
        return codes.OK
    console = output.console()
    if found:
        rows = output.fitted(_COLUMNS, [_row(each) for each in found], _SHRINK, console.width)
        console.print(output.table(_COLUMNS, rows, right=("died", "attempts")))
    else:
        console.print("there are no dead letters" + (" after that position" if after else ""))
    if len(found) == limit < total:
        more = f"--limit shows more, --after {found[-1].position} the next ones"
        sys.stderr.write(f"holdfast: the queue has {total} dead letters: {more}\n")
    return codes.OK


@app.command()
def show(
    name: QueueName,
    message: Annotated[str, typer.Argument(help="The id of the message.", metavar="ID")],
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Show all details of one dead letter.

    \b
    Example:
      holdfast dlq show jobs 0f3c9a
    """
    with connect(url, Capability.QUEUES) as hf:
        dead = hf.queue(name).dlq.get(message)
    if as_json:
        output.print_json({"queue": name, **_dead_json(dead)})
        return codes.OK
    facts: list[tuple[str, object]] = [
        ("id", dead.id),
        ("key", dead.key or "-"),
        ("reason", dead.reason),
        ("error", dead.error or "-"),
        ("attempts", dead.attempts),
        ("crashes", dead.crashes),
        ("first with", dead.first_consumer or "-"),
        ("last with", dead.last_consumer or "-"),
        ("sent", _day(dead.published)),
        ("died", _day(dead.died)),
        *((f"header {header}", value) for header, value in dead.headers.items()),
        ("body", body_line(dead.body, most=100_000)),
    ]
    output.console().print(output.facts(facts))
    return codes.OK


@app.command()
def redrive(
    name: QueueName,
    ids: Ids = None,
    url: Url = None,
    reason: Reason = None,
    rate: Annotated[
        float | None, typer.Option(min=0.01, help="Messages per second at most.", show_default="no bound")
    ] = None,
    keep_attempts: Annotated[bool, typer.Option("--keep-attempts", help="Do not reset the attempts.")] = False,
    as_json: Json = False,
) -> int:
    """Redrive dead letters: make them ready messages again. The given ids, or all that exist now.

    \b
    Example:
      holdfast dlq redrive jobs --reason timeout --rate 50
    """
    selection = Selection(tuple(ids or ()), reason, None)
    with connect(url, Capability.QUEUES) as hf:
        queue = hf.queue(name)
        most = _AT_ONCE if rate is None else max(1, min(_AT_ONCE, int(rate)))
        began, done = time.monotonic(), 0

        def redrive_part(part: list[str]) -> int:
            nonlocal done
            if rate is not None:
                time.sleep(max(0.0, began + done / rate - time.monotonic()))
            moved = queue.dlq.redrive(part, reset_attempts=not keep_attempts)
            done += moved
            return moved

        _in_parts(queue.dlq, queue.stats().dead, selection, most, redrive_part, "redriving", as_json=as_json)
    return _report(name, "redriven", done, selection, "ready again", as_json=as_json)


@app.command()
def purge(
    name: QueueName,
    ids: Ids = None,
    url: Url = None,
    reason: Reason = None,
    older: Annotated[
        float | None,
        duration("Only those that died this long ago or earlier.", show_default="any"),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Delete dead letters for good: the given ids, or all that exist now. It asks for confirmation.

    \b
    Example:
      holdfast dlq purge jobs --older 7d
    """
    selection = Selection(tuple(ids or ()), reason, older)
    with connect(url, Capability.QUEUES) as hf:
        queue = hf.queue(name)
        total = queue.stats().dead
        if not yes and not _confirm(name, selection, total):
            return errors.report_cancelled(as_json=as_json, name=name)
        done = _in_parts(queue.dlq, total, selection, _AT_ONCE, queue.dlq.purge, "deleting", as_json=as_json)
    return _report(name, "purged", done, selection, "deleted", as_json=as_json)


def _in_parts(
    dlq: DeadLetterQueue,
    dead: int,
    selection: Selection,
    most: int,
    action: Callable[[list[str]], int],
    title: str,
    *,
    as_json: bool,
) -> int:
    """Apply the action to one part after the other, with a progress bar; after an interrupt, say how many were done."""
    total, done = len(selection.ids) or dead, 0
    shown = sys.stderr.isatty() and not as_json
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.console(sys.stderr), disable=not shown) as progress:
        bar = progress.add_task(title, total=total)
        try:
            for read, part in _parts(dlq, total, selection, most):
                done += action(part) if part else 0
                progress.advance(bar, read)
        except KeyboardInterrupt:
            errors.remark(f"{done} were done before the interruption")
            raise
    return done


def _parts(dlq: DeadLetterQueue, total: int, selection: Selection, most: int) -> Iterator[tuple[int, list[str]]]:
    """Yield how many dead letters were read, and the ids of those that match."""
    after, read = "", 0
    while read < total:
        found: list[DeadLetter | None]
        if selection.ids:
            found = [_get(dlq, each) for each in selection.ids[read : read + most]]
        else:
            page = dlq.list(min(most, total - read), after)
            if not page:
                return
            after = page[-1].position
            found = list(page)
        read += len(found)
        yield len(found), [dead.id for dead in found if dead is not None and selection.matches(dead)]


def _get(dlq: DeadLetterQueue, message: str) -> DeadLetter | None:
    try:
        return dlq.get(message)
    except NotFound:
        return None


def _confirm(name: str, selection: Selection, dead: int) -> bool:
    """Ask before messages are deleted for good."""
    part = "some" if selection.reason or selection.older else f"all {dead}"
    which = f"{len(selection.ids)}" if selection.ids else part
    return prompts.confirm(f"Delete {which} dead letters of {plain(name)!r} for good?")


def _report(name: str, key: str, done: int, selection: Selection, now: str, *, as_json: bool) -> int:
    if selection.ids and not done:
        raise NotFound(name, "dead letter of these ids")
    if as_json:
        output.print_json({"queue": name, key: done})
    else:
        output.console().print(f"{done} dead letter{' is' if done == 1 else 's are'} {now}", markup=False)
    return codes.OK


def _day(seconds: float) -> str:
    """Return a time since 1970 as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _dead_json(each: DeadLetter) -> dict[str, Any]:
    facts = each._asdict()
    return {"id": facts.pop("id"), **body_json(facts.pop("body")), **facts, "key": each.key or None}


def _row(each: DeadLetter) -> tuple[object, ...]:
    died, last = f"{output.span(age(each.died))} ago", each.last_consumer
    return (each.id, each.key, died, each.attempts, last, each.reason, each.error, body_line(each.body))
