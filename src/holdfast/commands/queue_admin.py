"""What people ask about a queue, and what they are shown. Nothing here changes a message's place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.commands.queue import StoredMessage

# Under this roof the names of queues are found, as those of pools are under theirs.
QUEUES = "mq"


class GetStats(NamedTuple):
    """How the queue stands."""

    name: str


class ListConsumers(NamedTuple):
    """The consumers, at most so many; those whose ttl ends first come first."""

    name: str
    limit: int


class Peek(NamedTuple):
    """The first messages of a place, without taking them: `ready` (of a lane), `delayed`, `held` or `behind`.

    Of those that are behind others, the oldest entries come first.
    """

    name: str
    place: str
    limit: int
    lane: str = ""


# The parts of a queue that an audit looks at, one after the other; places have the words of `commands/queue.py`.
MESSAGES, CONSUMERS, LANES, NOTES, LINES, LETTERS, DEATHS = (
    "messages",
    "consumers",
    "lanes",
    "notes",
    "lines",
    "letters",
    "deaths",
)
AGAIN = "again"
# How much a page of an audit looks at: one to two milliseconds of a server's work.
PAGE = 300


class CheckConsistency(NamedTuple):
    """Is every message in exactly one place?

    An engine that can look at all of them at one instant, and stop nobody else by it, answers `ConsistencyChecked` and cares for
    nothing but the name. Any other answers one page, `ConsistencyPage`: of a part, or of the places of `which` consumer or
    lane, from `at` on, with about so many of it at `most`. `again` is a second look at suspects, at one instant.
    """

    name: str
    part: str = MESSAGES
    which: str = ""
    at: str = "0"
    most: int = PAGE
    candidates: tuple[str, ...] = ()


# Answers.


class QueueCounts(NamedTuple):
    """How many messages are where, and what was counted since the queue began.

    `oldest_ms`: how long ago the first ready message was sent, -1 if there is none. `counts` are pairs of a word and a
    number, sorted: published, repeated, taken, acked, retried, released, died, crashed, lost, redriven, purged,
    evicted; what never happened is not there.
    """

    ready: int
    quarantined: int
    delayed: int
    held: int
    dead: int
    waiting: int
    consumers: int
    oldest_ms: int
    next_ms: int
    counts: tuple[tuple[str, int], ...]
    behind: int = 0


class ConsumerInfo(NamedTuple):
    """One consumer, as people see it. `remaining_ms` is 0 if it is late."""

    token: str
    label: str
    holder: str
    fence: int
    held: int
    since_ms: int
    remaining_ms: int


class ConsumerList(NamedTuple):
    """The consumers."""

    consumers: tuple[ConsumerInfo, ...]


class PlacedMessage(NamedTuple):
    """One message where it is: with whom (a consumer's token), and in how many milliseconds it is due."""

    message: StoredMessage
    consumer: str
    due_ms: int


class Peeked(NamedTuple):
    """Messages that were looked at."""

    messages: tuple[PlacedMessage, ...]


class ConsistencyPage(NamedTuple):
    """A page: where to go on, what was seen, and what is wrong for certain; of each fault a kind, a word, an entry.

    `by` is who has answered, a run of a server; empty if that may not be asked. Pages of two do not go together: the
    place where to go on means something else to another one, and a replica may have put back what was taken.
    """

    at: str
    values: tuple[str, ...]
    faults: tuple[tuple[str, str, str], ...]
    server: str = ""


class ConsistencyChecked(NamedTuple):
    """How many messages were looked at, and what is wrong, in sentences; nothing if all is well."""

    messages: int
    faults: tuple[str, ...]
