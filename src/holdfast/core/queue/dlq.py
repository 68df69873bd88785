"""Dead letters: what was given up, kept with its reason, and how it is sent again."""

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
    GetDeadLetter,
    ListDeadLetters,
    Purge,
    Redrive,
)
from holdfast.commands.queue_admin import GetStats, QueueCounts
from holdfast.core.queue.codec import shown_body, shown_headers
from holdfast.core.queue.queue import LIMIT_MAX, _whole
from holdfast.core.resend import send_safely
from holdfast.errors import InvalidConfig, NotFound
from holdfast.names import is_unicode, new_token
from holdfast.rules.queue.state import dead_letter_position

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.commands.queue import StoredDeadLetter
    from holdfast.core.queue.queue import QueueBase

_ID_MAX = 200


class DeadLetter(NamedTuple):
    """A message that will not be tried again by itself.

    `error` is what the last attempt said; `first` and `last` are the consumers that failed with it. `published` and
    `died` are in seconds since 1970. A body that cannot be decoded is given as its bytes. `place` is where it stands
    in the list: `list(after=letter.position)` goes on behind it. `key` is the one that it was sent with.
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


class DlqBase:
    """The dead letters of one queue."""

    def __init__(self, queue: QueueBase) -> None:
        self._queue = queue

    def __repr__(self) -> str:
        return f"<dead letters of {self._queue.name!r} on {self._queue._client.url}>"


async def letters(dlq: DlqBase, limit: int, after: str) -> list[DeadLetter]:
    """A page of them, the oldest death first."""
    _whole("limit", limit, 0, LIMIT_MAX)
    if not isinstance(after, str) or not is_unicode(after):
        raise InvalidConfig("after", after, "it must be the `place` of a letter")
    found: list[DeadLetter] = []
    while len(found) < limit:
        page, after = await _page(dlq, min(BATCH_MAX, limit - len(found)), after)
        found += page
        if not after:
            break
    return found


async def get(dlq: DlqBase, id: str) -> DeadLetter:  # noqa: A002 - a message's
    """One of them."""
    queue = dlq._queue
    answer = await send_safely(queue._client, GetDeadLetter(queue.name, _checked_ids((id,))[0]))
    assert isinstance(answer, DeadLetterPage)
    if not answer.dead_letters:
        raise NotFound(queue.name, f"dead letter {id!r}")
    return _shown(queue, answer.dead_letters[0])


async def redrive(
    dlq: DlqBase,
    ids: Iterable[str] | None,
    where: Callable[[DeadLetter], object] | None,
    rate: float | None,
    reset_attempts: bool,
) -> int:
    """Send them again: these, or those of which `where` is true, or all; how many were."""
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < inf):
        raise InvalidConfig("rate", rate, "it must be more than zero messages per second")
    _check_where(where)
    queue, client = dlq._queue, dlq._queue._client
    done, began_ns, left = 0, client.clock.now_ns(), await _how_many(dlq, ids)
    most = COSTLY_BATCH_MAX if rate is None else max(1, min(COSTLY_BATCH_MAX, int(rate)))
    after = ""
    given = None if ids is None else list(_checked_ids(ids))
    while True:
        if given is not None:
            part, given = given[:most], given[most:]
            more = bool(given)
            if where is not None:
                part = [letter.id for letter in await _those(dlq, part) if where(letter)]
        else:
            page, after = await _page(dlq, min(most, left), after) if left else ([], "")
            left -= len(page)
            part, more = [letter.id for letter in page if where is None or where(letter)], bool(after and left)
        if part:
            answer = await send_safely(client, Redrive(queue.name, tuple(part), reset_attempts, new_token()))
            assert isinstance(answer, DeadLettersRemoved)
            done += len(answer.ids)
        if not more:
            return done
        if rate is not None and part:
            await client.transport.waker().wait(began_ns + int(done * NS / rate))


async def purge(
    dlq: DlqBase, ids: Iterable[str] | None, where: Callable[[DeadLetter], object] | None, before: float | None
) -> int:
    """Forget them: these, or those of which `where` is true, or those that died before, or all; how many were."""
    if before is not None and (isinstance(before, bool) or not isinstance(before, int | float)):
        raise InvalidConfig("before", before, "it must be a time in seconds since 1970")
    _check_where(where)
    queue, done, after, left = dlq._queue, 0, "", await _how_many(dlq, ids)
    given = None if ids is None else list(_checked_ids(ids))
    while True:
        if given is not None:
            part, given = given[:BATCH_MAX], given[BATCH_MAX:]
            page, more = (await _those(dlq, part) if where or before is not None else None), bool(given)
        else:
            page, after = await _page(dlq, min(BATCH_MAX, left), after) if left else ([], "")
            left -= len(page)
            more = bool(after and left)
        if page is not None:
            part = [
                letter.id
                for letter in page
                if (where is None or where(letter)) and (before is None or letter.died < before)
            ]
        if part:
            answer = await send_safely(queue._client, Purge(queue.name, tuple(part), new_token()))
            assert isinstance(answer, DeadLettersRemoved)
            done += len(answer.ids)
        if not more:
            return done


async def _how_many(dlq: DlqBase, ids: object) -> int:
    """All are those that are there now: a letter that dies again meanwhile is not sent again and again."""
    if ids is not None:
        return 0
    answer = await send_safely(dlq._queue._client, GetStats(dlq._queue.name))
    assert isinstance(answer, QueueCounts)
    return answer.dead


async def _page(dlq: DlqBase, limit: int, after: str) -> tuple[list[DeadLetter], str]:
    if not limit:
        return [], ""
    queue = dlq._queue
    answer = await send_safely(queue._client, ListDeadLetters(queue.name, after, limit))
    assert isinstance(answer, DeadLetterPage)
    return [_shown(queue, letter) for letter in answer.dead_letters], answer.last


async def _those(dlq: DlqBase, ids: list[str]) -> list[DeadLetter]:
    found = []
    for each in ids:
        answer = await send_safely(dlq._queue._client, GetDeadLetter(dlq._queue.name, each))
        assert isinstance(answer, DeadLetterPage)
        found += [_shown(dlq._queue, letter) for letter in answer.dead_letters]
    return found


def _shown(queue: QueueBase, letter: StoredDeadLetter) -> DeadLetter:
    kept = letter.message
    return DeadLetter(
        kept.id,
        shown_body(queue._codec, kept),
        shown_headers(kept.headers),
        letter.reason,
        kept.last_error,
        kept.attempts,
        kept.crashes,
        kept.first_consumer,
        kept.last_consumer,
        kept.published_us / 1_000_000,
        letter.died_us / 1_000_000,
        dead_letter_position(letter),
        kept.key,
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
