"""What `holdfast dlq` does.

Whoever says "all" means those that are there now: a letter that dies again meanwhile is not sent again and again.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from holdfast.cli import asking, codes, failing, looking, output
from holdfast.cli.plain import plain
from holdfast.cli.queue import bodies
from holdfast.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.blocking import DeadLetterQueue
    from holdfast.core.queue.dlq import DeadLetter

_AT_ONCE = 128
_COLUMNS = ("id", "key", "died", "attempts", "last with", "reason", "error", "body")
_SHRINK = (("error", 12), ("body", 8), ("last with", 8), ("reason", 12), ("key", 8))


class Chosen(NamedTuple):
    """Which letters are meant: these ids, or all; of them those with this text, and those that old."""

    ids: tuple[str, ...]
    reason: str | None
    older: float | None

    def has(self, letter: DeadLetter) -> bool:
        said = self.reason is None or self.reason in letter.reason or self.reason in letter.error
        return said and (self.older is None or bodies.ago(letter.died) >= self.older)


def list_letters(url: str | None, name: str, *, limit: int, after: str, as_json: bool) -> int:
    with looking.connect(url, "queues") as hf:
        queue = hf.queue(name)
        found, dead = queue.dlq.list(limit, after), queue.stats().dead
    if as_json:
        output.print_json({"queue": name, "dead": dead, "letters": [_letter(each) for each in found]})
        return codes.OK
    console = output.console()
    if found:
        rows = output.fitted(_COLUMNS, [_row(each) for each in found], _SHRINK, console.width)
        console.print(output.table(_COLUMNS, rows, right=("died", "attempts")))
    else:
        console.print("there are no dead letters" + (" behind that place" if after else ""))
    if len(found) == limit < dead:
        sys.stderr.write(f"holdfast: {dead} letters are dead: --limit shows more, --after {found[-1].position} the next\n")
    return codes.OK


def show(url: str | None, name: str, message: str, *, as_json: bool) -> int:
    with looking.connect(url, "queues") as hf:
        letter = hf.queue(name).dlq.get(message)
    if as_json:
        output.print_json({"queue": name, **_letter(letter)})
        return codes.OK
    facts: list[tuple[str, object]] = [
        ("id", letter.id),
        ("key", letter.key or "-"),
        ("reason", letter.reason),
        ("error", letter.error or "-"),
        ("attempts", letter.attempts),
        ("crashes", letter.crashes),
        ("first with", letter.first_consumer or "-"),
        ("last with", letter.last_consumer or "-"),
        ("sent", bodies.day(letter.published)),
        ("died", bodies.day(letter.died)),
        *((f"header {name}", value) for name, value in letter.headers.items()),
        ("body", bodies.for_people(letter.body, most=100_000)),
    ]
    output.console().print(output.facts(facts))
    return codes.OK


def redrive(url: str | None, name: str, chosen: Chosen, *, rate: float | None, reset: bool, as_json: bool) -> int:
    with looking.connect(url, "queues") as hf:
        queue = hf.queue(name)
        most = _AT_ONCE if rate is None else max(1, min(_AT_ONCE, int(rate)))
        began, done = time.monotonic(), 0

        def again(ids: list[str]) -> int:
            nonlocal done
            if rate is not None:
                time.sleep(max(0.0, began + done / rate - time.monotonic()))
            moved = queue.dlq.redrive(ids, reset_attempts=reset)
            done += moved
            return moved

        _each(queue.dlq, queue.stats().dead, chosen, most, again, "sending again", as_json=as_json)
    return _told(name, "redriven", done, chosen, "is ready again" if done == 1 else "are ready again", as_json=as_json)


def purge(url: str | None, name: str, chosen: Chosen, *, yes: bool, as_json: bool) -> int:
    with looking.connect(url, "queues") as hf:
        queue = hf.queue(name)
        dead = queue.stats().dead
        if not yes and not _agreed(name, chosen, dead):
            return failing.tell("refused", codes.ATTENTION, "nothing was done", as_json=as_json, name=name)
        done = _each(queue.dlq, dead, chosen, _AT_ONCE, queue.dlq.purge, "forgetting", as_json=as_json)
    return _told(name, "purged", done, chosen, "is forgotten" if done == 1 else "are forgotten", as_json=as_json)


def _each(
    dlq: DeadLetterQueue,
    dead: int,
    chosen: Chosen,
    most: int,
    deed: Callable[[list[str]], int],
    word: str,
    *,
    as_json: bool,
) -> int:
    """Do it with a part at a time, and show how far it is; whoever interrupts is told how far it came."""
    total, done = len(chosen.ids) or dead, 0
    shown = sys.stderr.isatty() and not as_json
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.console(sys.stderr), disable=not shown) as progress:
        bar = progress.add_task(word, total=total)
        try:
            for looked, part in _parts(dlq, total, chosen, most):
                done += deed(part) if part else 0
                progress.advance(bar, looked)
        except KeyboardInterrupt:
            failing.remark(f"{done} were done before the interruption")
            raise
    return done


def _parts(dlq: DeadLetterQueue, total: int, chosen: Chosen, most: int) -> Iterator[tuple[int, list[str]]]:
    """How many were looked at, and which of them are meant."""
    after, looked = "", 0
    while looked < total:
        if chosen.ids:
            letters = [_found(dlq, each) for each in chosen.ids[looked : looked + most]]
            size = len(letters)
        else:
            letters = list(dlq.list(min(most, total - looked), after))
            size = len(letters)
            if not letters:
                return
            after = letters[-1].position  # type: ignore[union-attr]
        looked += size
        yield size, [letter.id for letter in letters if letter is not None and chosen.has(letter)]


def _found(dlq: DeadLetterQueue, message: str) -> DeadLetter | None:
    try:
        return dlq.get(message)
    except NotFound:
        return None


def _agreed(name: str, chosen: Chosen, dead: int) -> bool:
    """What is forgotten does not come back."""
    if not sys.stdin.isatty():
        raise asking.NeedsYes
    import typer  # noqa: PLC0415

    which = f"{len(chosen.ids)}" if chosen.ids else "some" if chosen.reason or chosen.older else f"all {dead}"
    return typer.confirm(f"Forget {which} dead letters of {plain(name)!r} for good?", err=True)


def _told(name: str, word: str, done: int, chosen: Chosen, became: str, *, as_json: bool) -> int:
    if chosen.ids and not done:
        raise NotFound(name, "dead letter of these ids")
    if as_json:
        output.print_json({"queue": name, word: done})
    else:
        output.console().print(f"{done} dead letter{'' if done == 1 else 's'} {became}", markup=False)
    return codes.OK


def _letter(each: DeadLetter) -> dict[str, Any]:
    facts = each._asdict()
    return {"id": facts.pop("id"), **bodies.for_programs(facts.pop("body")), **facts, "key": each.key or None}


def _row(each: DeadLetter) -> tuple[object, ...]:
    died = f"{output.span(bodies.ago(each.died))} ago"
    return (each.id, each.key, died, each.attempts, each.last_consumer, each.reason, each.error, bodies.for_people(each.body))
