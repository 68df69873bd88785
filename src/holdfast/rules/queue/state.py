"""The state of one message queue, as the rules see it: consumers, entries, and the protocol `QueueState`.

The rules read and change a queue only through the methods of `QueueState`. So an engine may look up only the rows that
a rule needs, and a receive costs the same with ten messages as with a million. `MemoryQueueState` (in
`memory_state.py`) holds all messages in memory.

Consumer sessions use the engine's monotonic clock. Delays, dates and remembered results use the engine's calendar,
because they must survive a restart of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from holdfast.commands.queue import QUARANTINE, StoredDeadLetter, StoredMessage
from holdfast.commands.queue_admin import PlacedMessage

# A message goes into quarantine after this many consumers have died while they held it.
QUARANTINE_AT = 2
# The blame window of a message lasts a third of the ttl, if its consumer keeps messages for a long time.
BLAME_WINDOWS_PER_TTL = 3
# Why a message became a dead letter, and the error of an attempt that ended with the death of its consumer.
ATTEMPTS_USED_UP = "attempts used up"
CONSUMER_DIED = "its consumer died"
# The counters of a queue's statistics.
PUBLISHED, DEDUPLICATED, RECEIVED = "published", "deduplicated", "received"
ACKED, RETRIED, RELEASED, DEAD_LETTERED = "acked", "retried", "released", "dead_lettered"
CRASHED, LOST, REDRIVEN, PURGED, EVICTED = "crashed", "lost", "redriven", "purged", "evicted"
# The blame for a consumer's death: exactly one message can be the cause, or the cause is unclear.
BLAME_ONE, BLAME_UNCLEAR = "one", "unclear"


class ConsumerRecord(NamedTuple):
    """One consumer session. `blame` is set once the engine has declared the consumer dead; the reclaim has begun."""

    token: str
    client: str
    holder: str
    label: str
    fence: int
    ttl_ms: int
    since_us: int
    expires_us: int
    blame: str = ""
    keeps_messages: bool = False

    @property
    def blame_from_us(self) -> int:
        """The start of the blame window: a message received later may have killed the consumer, an older one has not.

        A consumer that keeps messages for hours holds hundreds of them, and all but the newest have proved harmless.
        Its last heartbeat came a ttl before the end of the session. The window begins a part of the ttl before that
        heartbeat: a consumer that survived a message for that long did not die of it.
        """
        ttl_us = self.ttl_ms * 1000
        return self.expires_us - ttl_us - ttl_us // BLAME_WINDOWS_PER_TTL if self.keeps_messages else -1


class QueueEntry(NamedTuple):
    """A message in a lane or held by a consumer: its lane, the fence of its delivery, and the time of its delivery."""

    entry: str
    lane: str
    message: StoredMessage
    fence: int = 0
    received_us: int = 0


class KeyHead(NamedTuple):
    """The first message of a key: its place, and the token of the consumer that holds it."""

    place: str
    token: str
    entry: QueueEntry


class QueueTotals(NamedTuple):
    """How many messages are in each place. `oldest_us`: when the first ready message was published; 0 if none is."""

    ready: int
    quarantined: int
    delayed: int
    held: int
    dead: int
    waiting: int
    consumers: int
    oldest_us: int
    counts: tuple[tuple[str, int], ...]
    behind: int = 0


class QueueState(Protocol):
    """One queue. A rule that removes a message from a place must put it into another place in the same step."""

    fence: int
    checked_us: int  # when a client last checked for expired consumers; 0 if never
    next_check_us: int  # when the next check is due
    drain_token: str  # the consumer that the engine asked to drain, so that it can receive a message in quarantine
    drain_until_us: int  # until then, the engine asks no other consumer

    @property
    def size(self) -> int:
        """The number of messages, without dead letters."""

    @property
    def consumer_count(self) -> int:
        """The number of consumers."""

    def held_counts(self, token: str) -> tuple[int, int]:
        """Return how many messages this consumer holds, and how many all consumers hold."""

    def add_to_counter(self, name: str, more: int) -> None:
        """Add to one of the counters of the queue's statistics."""

    def totals(self) -> QueueTotals:
        """Return how many messages are in each place, and the counters."""

    # Consumers.

    def get_consumer(self, token: str) -> ConsumerRecord | None:
        """Return the consumer of this session."""

    def put_consumer(self, consumer: ConsumerRecord) -> None:
        """Add a consumer, or replace its record."""

    def remove_consumer(self, token: str) -> None:
        """Remove a consumer, which holds no messages, also from the waiting consumers."""

    def expired_consumers(self, by_us: int, gone: AbstractSet[str], limit: int) -> list[ConsumerRecord]:
        """Return the consumers that expire by `by_us`, and the consumers of the clients `gone`, in order of expiry."""

    def next_expiry_us(self) -> int:
        """Return when the next consumer session expires; 0 if there is no consumer."""

    def watched_clients(self) -> AbstractSet[str]:
        """Return the clients that have a consumer here."""

    def list_consumers(self, limit: int) -> list[tuple[ConsumerRecord, int]]:
        """Return consumers with the number of messages each holds, the first to expire first."""

    def add_waiting(self, token: str) -> int:
        """Add a consumer to the waiting consumers, or keep its place; return how many are ahead of it."""

    def remove_waiting(self, token: str) -> None:
        """Remove a consumer from the waiting consumers."""

    def first_waiting(self) -> str | None:
        """Return the consumer that has waited longest."""

    # Ready messages.

    def add_ready(self, lane: str, message: StoredMessage) -> None:
        """Put a message at the end of a lane, as a new entry."""

    def deliver_ready(self, lane: str, count: int, token: str, fence: int, now_us: int) -> list[QueueEntry]:
        """Move the first messages of a lane to this consumer; their fences count up from `fence`."""

    def remove_ready(self, lane: str, entry: str) -> None:
        """Remove one message from a lane. This may take long in a long lane."""

    def ready_count(self, lane: str) -> int:
        """Return how many messages are ready in this lane."""

    # Delayed messages.

    def add_delayed(self, message: StoredMessage, due_us: int) -> None:
        """Delay a message until `due_us`."""

    def pop_due(self, now_us: int, limit: int) -> list[StoredMessage]:
        """Remove and return the messages whose delay has passed, the first due first."""

    def next_due_us(self) -> int:
        """Return when the next delay ends; 0 if no message is delayed."""

    # Messages held by a consumer.

    def list_held(self, token: str, limit: int) -> list[QueueEntry]:
        """Return the messages of this consumer, the smallest fence first."""

    def newest_held(self, token: str, limit: int) -> list[QueueEntry]:
        """Return the messages of this consumer, the largest fence first."""

    def held_entries(self, token: str, limit: int) -> list[str]:
        """Return the entries of this consumer's messages, the smallest fence first."""

    def find_held(self, token: str, entry: str) -> QueueEntry | None:
        """Return this message, if this consumer holds it."""

    def remove_held(self, token: str, entry: str) -> None:
        """Take a message away from its consumer."""

    def deliver(self, lane: str, message: StoredMessage, token: str, fence: int, now_us: int) -> QueueEntry:
        """Give a message to this consumer, as a new entry of the lane."""

    # Messages that share a key. The head of a key is ready, delayed or held; the others are behind it.

    def key_head(self, key: str) -> KeyHead | None:
        """Return the first message of this key."""

    def add_behind(self, message: StoredMessage) -> None:
        """Put a message behind all others of its key, which must have a head."""

    def pop_next_of_key(self, key: str) -> StoredMessage | None:
        """Forget the head of the key, which has left the queue; remove and return the first message behind it."""

    # Dead letters.

    def add_dead_letter(self, dead_letter: StoredDeadLetter) -> None:
        """Add a dead letter."""

    def get_dead_letter(self, id: str) -> StoredDeadLetter | None:  # noqa: A002 - the id of a message
        """Return the dead letter of this message."""

    def list_dead_letters(self, after: str, limit: int) -> Iterator[StoredDeadLetter]:
        """Yield the dead letters after this position, in the order of `position_of_dead_letter`, each when needed."""

    def dead_positions(self, after: str, limit: int) -> list[str]:
        """Return the positions of the dead letters after this position, without reading their bodies."""

    def remove_dead_letter(self, id: str) -> bool:  # noqa: A002
        """Remove the dead letter of this message; return whether there was one."""

    def remove_dead_position(self, position: str) -> bool:
        """Remove the dead letter at this position; return whether there was one."""

    def evict_dead_letters(self, most: int) -> int:
        """Drop the oldest dead letters beyond `most`, and return how many were dropped."""

    # Results that are remembered for a while.

    def dedup_id(self, dedup_key: str, now_us: int) -> str:
        """Return the id of the message that was published under this deduplication key; empty if it has expired."""

    def remember_dedup(self, dedup_key: str, id: str, until_us: int) -> None:  # noqa: A002
        """Remember the id that was published under this deduplication key."""

    def earlier_result(self, token: str, now_us: int) -> tuple[str, ...] | None:
        """Return the answer to an earlier copy of this call, if the engine remembers it."""

    def remember_result(self, token: str, ids: tuple[str, ...], until_us: int) -> None:
        """Remember the answer to this call."""

    # Inspection.

    def peek(self, place: str, limit: int, lane: str, now_us: int) -> list[PlacedMessage]:
        """Return the first messages of a place without moving them."""

    def check_consistency(self) -> tuple[int, list[str]]:
        """Return the number of messages, dead letters included, and a sentence for each inconsistency."""


def lane_of(message: StoredMessage) -> str:
    """Return the lane in which a message becomes ready: the quarantine, or the lane of its priority."""
    return QUARANTINE if message.crashes >= QUARANTINE_AT else message.lane


def position_of_dead_letter(dead_letter: StoredDeadLetter) -> str:
    """Return the position of a dead letter in the order of time, as text that sorts in that order."""
    return f"{dead_letter.died_us:020d}-{dead_letter.message.id}"
