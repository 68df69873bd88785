"""Commands that inspect a queue, and their answers. None of them moves a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.commands.queue import StoredMessage

# The kind under which an engine lists the names of queues, as it lists pools and semaphores under theirs.
QUEUES = "queue"


class GetStats(NamedTuple):
    """Count the messages in each place. Answer: `QueueCounts`."""

    name: str


class ListConsumers(NamedTuple):
    """List at most `limit` consumers, the first to expire first. Answer: `ConsumerList`."""

    name: str
    limit: int


class Peek(NamedTuple):
    """Show the first messages of a place and leave them there: `ready` (of a lane), `delayed`, `held` or `behind`.

    Among the messages behind others, the oldest entries come first. Answer: `Peeked`.
    """

    name: str
    place: str
    limit: int
    lane: str = ""


# The parts of a queue that a consistency check reads, one after the other, besides the places of `commands/queue.py`:
# the stored messages, the consumers, the lanes, the index of key heads, the order behind each key head, the dead
# letters and their order.
MESSAGES, CONSUMERS, LANES, KEY_HEADS, KEY_LINES, DEAD_LETTERS, DEAD_ORDER = (
    "messages",
    "consumers",
    "lanes",
    "key_heads",
    "key_lines",
    "dead_letters",
    "dead_order",
)
RECHECK = "recheck"
# How many entries a page of a check reads: one to two milliseconds of a server's work.
PAGE = 300


class CheckConsistency(NamedTuple):
    """Check that every message is in exactly one place.

    An engine that can read all messages at one instant without blocking others answers `ConsistencyChecked`, and uses
    only the name. Any other engine answers one page, `ConsistencyPage`: the entries of a part, or of the consumer or
    lane `which`, from `at` on, about `most` of them. The part `recheck` reads the `candidates` again, at one instant.
    """

    name: str
    part: str = MESSAGES
    which: str = ""
    at: str = "0"
    most: int = PAGE
    candidates: tuple[str, ...] = ()


# Answers.


class QueueCounts(NamedTuple):
    """How many messages are in each place, and counters since the queue began.

    `oldest_ms`: the age of the first ready message; -1 if none is ready. `counts`: pairs of a name and a number,
    sorted; the names are the counters of `rules/queue/state.py`, and a counter at zero is missing.
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
    """One consumer, for people to read. `remaining_ms` is 0 if its heartbeat is late."""

    token: str
    label: str
    holder: str
    fence: int
    held: int
    since_ms: int
    remaining_ms: int


class ConsumerList(NamedTuple):
    """The consumers of a queue."""

    consumers: tuple[ConsumerInfo, ...]


class PlacedMessage(NamedTuple):
    """A message where it is: the token of the consumer that holds it, and in how many milliseconds it is due."""

    message: StoredMessage
    consumer: str
    due_ms: int


class Peeked(NamedTuple):
    """The first messages of a place."""

    messages: tuple[PlacedMessage, ...]


class ConsistencyPage(NamedTuple):
    """One page of a check: where to continue, the values it read, and the faults that it proves by itself.

    Each fault is a kind, a value and an entry. `server` names the run of the server that answered; it is empty if the
    user has no permission to read it. Pages of two servers cannot be combined: `at` has another meaning on the other
    server, and on a replica that took over, a message that was already received may be ready again.
    """

    at: str
    values: tuple[str, ...]
    faults: tuple[tuple[str, str, str], ...]
    server: str = ""


class ConsistencyChecked(NamedTuple):
    """How many messages were checked, and a sentence for each fault."""

    messages: int
    faults: tuple[str, ...]
