"""Dead letters: messages that are no longer retried. The queue keeps them until a program redrives or purges them."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.clock import NS
from holdfast.commands.queue import (
    BATCH_MAX,
    COSTLY_BATCH_MAX,
    DeadLetterPage,
    DeadLettersRemoved,
    DeadPositions,
    GetDeadLetter,
    ListDeadLetters,
    ListDeadPositions,
    Purge,
    Redrive,
)
from holdfast.commands.queue_admin import GetStats, QueueCounts
from holdfast.core.queue.codec import shown_body, shown_headers
from holdfast.core.queue.queue import LIMIT_MAX, whole_number
from holdfast.core.resend import send_safely
from holdfast.errors import InvalidConfig, NotFound
from holdfast.names import is_unicode, new_token
from holdfast.rules.queue.state import position_of_dead_letter

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.commands.queue import StoredDeadLetter
    from holdfast.core.queue.queue import QueueCore

_ID_MAX = 200


class DeadLetter(NamedTuple):
    """A message that is no longer retried.

    `reason`: why it became a dead letter. `error`: the error of the last attempt. `attempts`: how many failed.
    `crashes`: how many consumers died with it. `first_consumer` and `last_consumer`: the consumers that failed with it.
    `published` and `died`: seconds since 1970. `body`: its bytes if the codec cannot decode it. `position`: its place
    in the list; `list(after=dead_letter.position)` continues after it. `key`: the key it was published with.
    """

    id: str
    body: Any
    headers: dict[str, str]
    reason: str
    error: str
    attempts: int
    crashes: int
    first_consumer: str
    last_consumer: str
    published: float
    died: float
    position: str
    key: str = ""


class DeadLetterQueueBase:
    """The dead letters of one queue."""

    def __init__(self, queue: QueueCore) -> None:
        self._queue = queue

    def __repr__(self) -> str:
        return f"<dead letters of {self._queue.name!r} on {self._queue.client.url}>"


async def list_dead_letters(queue: QueueCore, limit: int, after: str) -> list[DeadLetter]:
    """Return up to `limit` dead letters after this position, the oldest first."""
    whole_number("limit", limit, 0, LIMIT_MAX)
    if not isinstance(after, str) or len(after) > _ID_MAX or not is_unicode(after):
        raise InvalidConfig("after", after, "it must be the `position` of a dead letter")
    found: list[DeadLetter] = []
    while len(found) < limit:
        page, after = await _page(queue, min(BATCH_MAX, limit - len(found)), after)
        found += page
        if not after:
            break
    return found


async def get_dead_letter(queue: QueueCore, id: str) -> DeadLetter:  # noqa: A002 - the id of a message
    """Return the dead letter of this message; raise `NotFound` if there is none."""
    answer = await send_safely(queue.client, GetDeadLetter(queue.name, _checked_ids((id,))[0]))
    assert isinstance(answer, DeadLetterPage)
    if not answer.dead_letters:
        raise NotFound(queue.name, f"dead letter {id!r}")
    return _shown(queue, answer.dead_letters[0])


async def redrive(
    queue: QueueCore,
    ids: Iterable[str] | None,
    where: Callable[[DeadLetter], object] | None,
    rate: float | None,
    reset_attempts: bool,
) -> int:
    """Publish dead letters again: these ids, or those for which `where` is true, or all; return how many."""
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < inf):
        raise InvalidConfig("rate", rate, "it must be more than zero messages per second")
    _check_where(where)
    client = queue.client
    done, began_ns = 0, client.clock.now_ns()
    most = COSTLY_BATCH_MAX if rate is None else max(1, min(COSTLY_BATCH_MAX, int(rate)))
    selection = _Selection(queue, ids, where, None, most)
    while True:
        part, more = await selection.next()
        rest = tuple(map(_id_at, part) if selection.by_position else part)
        done += await _remove(queue, rest, lambda rest: Redrive(queue.name, rest, reset_attempts, new_token()))
        if not more:
            return done
        if rate is not None and part:
            await client.transport.waker().wait(began_ns + int(done * NS / rate))


async def purge(
    queue: QueueCore,
    ids: Iterable[str] | None,
    where: Callable[[DeadLetter], object] | None,
    before: float | None,
) -> int:
    """Delete dead letters: these ids, or those for which `where` is true, or older ones, or all; return how many."""
    if before is not None and (isinstance(before, bool) or not isinstance(before, int | float)):
        raise InvalidConfig("before", before, "it must be a time in seconds since 1970")
    _check_where(where)
    done, selection = 0, _Selection(queue, ids, where, before, BATCH_MAX)
    while True:
        part, more = await selection.next()
        done += await _remove(
            queue, tuple(part), lambda rest: Purge(queue.name, rest, new_token(), selection.by_position)
        )
        if not more:
            return done


async def _remove(
    queue: QueueCore, rest: tuple[str, ...], command: Callable[[tuple[str, ...]], Redrive | Purge]
) -> int:
    """Redrive or purge these dead letters, in as many steps as their size needs; return how many there were."""
    done = 0
    while rest:
        answer = await send_safely(queue.client, command(rest))
        assert isinstance(answer, DeadLettersRemoved)
        done += len(answer.ids)
        removed = frozenset(answer.ids)
        rest = tuple(each for each in rest if each not in removed) if removed else ()
    return done


class _Selection:
    """The dead letters that a redrive or a purge concerns, part by part: their positions, or the ids of the program.

    Without ids, it ends after as many dead letters as there are at the start: a redrive must not repeat messages that
    die again. Bodies are read only for `where`.
    """

    def __init__(
        self,
        queue: QueueCore,
        ids: Iterable[str] | None,
        where: Callable[[DeadLetter], object] | None,
        before: float | None,
        most: int,
    ) -> None:
        self.by_position = ids is None or where is not None or before is not None
        self._queue = queue
        self._ids = None if ids is None else _checked_ids(ids)
        self._where, self._before, self._most = where, before, most
        self._after, self._left = "", -1

    async def next(self) -> tuple[list[str], bool]:
        """Return the next part, and whether more may follow."""
        if self._ids is not None:
            part, self._ids = self._ids[: self._most], self._ids[self._most :]
            if not self.by_position:
                return list(part), bool(self._ids)
            return self._chosen(await _get_all(self._queue, part)), bool(self._ids)
        if self._left < 0:
            counts = await send_safely(self._queue.client, GetStats(self._queue.name))
            assert isinstance(counts, QueueCounts)
            self._left = counts.dead
        limit = min(self._most, self._left)
        if self._where is not None:
            page, self._after = await _page(self._queue, limit, self._after)
            self._left -= len(page)
            return self._chosen(page), bool(self._after and self._left)
        if not limit:
            return [], False
        answer = await send_safely(self._queue.client, ListDeadPositions(self._queue.name, self._after, limit))
        assert isinstance(answer, DeadPositions)
        self._left -= len(answer.positions)
        self._after = answer.positions[-1] if len(answer.positions) == limit else ""
        return [each for each in answer.positions if self._is_old(each)], bool(self._after and self._left)

    def _chosen(self, dead_letters: list[DeadLetter]) -> list[str]:
        where = self._where
        return [
            each.position for each in dead_letters if (where is None or where(each)) and self._is_old(each.position)
        ]

    def _is_old(self, position: str) -> bool:
        return self._before is None or int(position.partition("-")[0]) / 1_000_000 < self._before


def _id_at(position: str) -> str:
    return position.partition("-")[2]


async def _page(queue: QueueCore, limit: int, after: str) -> tuple[list[DeadLetter], str]:
    if not limit:
        return [], ""
    answer = await send_safely(queue.client, ListDeadLetters(queue.name, after, limit))
    assert isinstance(answer, DeadLetterPage)
    return [_shown(queue, dead_letter) for dead_letter in answer.dead_letters], answer.last


async def _get_all(queue: QueueCore, ids: tuple[str, ...]) -> list[DeadLetter]:
    found = []
    for each in ids:
        answer = await send_safely(queue.client, GetDeadLetter(queue.name, each))
        assert isinstance(answer, DeadLetterPage)
        found += [_shown(queue, dead_letter) for dead_letter in answer.dead_letters]
    return found


def _shown(queue: QueueCore, dead_letter: StoredDeadLetter) -> DeadLetter:
    message = dead_letter.message
    return DeadLetter(
        message.id,
        shown_body(queue.codec, message),
        shown_headers(message.headers),
        dead_letter.reason,
        message.last_error,
        message.attempts,
        message.crashes,
        message.first_consumer,
        message.last_consumer,
        message.published_us / 1_000_000,
        dead_letter.died_us / 1_000_000,
        position_of_dead_letter(dead_letter),
        message.key,
    )


def _check_where(where: object) -> None:
    if where is not None and not callable(where):
        raise InvalidConfig("where", where, "it must be callable with a dead letter")


def _checked_ids(ids: Iterable[str]) -> tuple[str, ...]:
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InvalidConfig("ids", ids, "it must be a list of ids, not one text")
    found = tuple(ids)
    for each in found:
        if not isinstance(each, str) or not 0 < len(each) <= _ID_MAX or not is_unicode(each):
            raise InvalidConfig("ids", each, f"an id is text of 1 to {_ID_MAX} characters")
    return found
