"""What the law of queues speaks of: consumers, entries, and the depot that has all messages.

A depot is asked through a few questions, and told what has changed. So an engine may look up what the law asks for, and
a take costs the same whether ten messages are there or a million. `MemoryQueueState` (in `state.py`) carries its messages.

Leases of consumers stand on the engine's clock that never jumps; delays, dates and what is remembered on its calendar,
because they outlive a restart of the machine.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from holdfast.commands.queue import QUARANTINE, StoredDeadLetter, StoredMessage
from holdfast.commands.queue_admin import PlacedMessage

# A message in whose company so many consumers have died is a suspect.
QUARANTINE_AT = 2
# How many trials there are in a ttl, of consumers that keep their messages.
PROBATIONS_PER_TTL = 3


# What is known of a consumer that was taken for dead and still has messages: whether one of them, and only one, may be
# to blame.
BLAME_ONE, BLAME_UNCLEAR = "one", "unclear"


class ConsumerRecord(NamedTuple):
    """One incarnation of a consumer. If it has `fallen`, it was taken for dead: others are being given what it had."""

    token: str
    client: str
    holder: str
    label: str
    fence: int
    ttl_ms: int
    since_us: int
    ends_us: int
    blame: str = ""
    keeps_messages: bool = False

    @property
    def probation_us(self) -> int:
        """What it takes after this may have to do with its death; what it has had for longer has not.

        Whoever keeps messages for hours has hundreds of them, and all but the newest have shown that they kill nobody.
        It was heard of last a ttl before its end; before that, a part of the ttl is trial enough.
        """
        ttl_us = self.ttl_ms * 1000
        return self.ends_us - ttl_us - ttl_us // PROBATIONS_PER_TTL if self.keeps_messages else -1


class QueueEntry(NamedTuple):
    """A message that is with a consumer: the lane that it came from, the fence that it was given, and when."""

    entry: str
    lane: str
    message: StoredMessage
    fence: int = 0
    received_us: int = 0


class KeyHead(NamedTuple):
    """The message of a key that comes before all others of it: where it is, and with whom."""

    place: str
    token: str
    entry: QueueEntry


class QueueTotals(NamedTuple):
    """How many messages are where. `oldest_us` is when the first ready one was sent; 0 if there is none."""

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
    """A queue, as the law sees it."""

    fence: int
    checked_us: int  # when somebody looked for dead consumers last; 0 if nobody ever has
    next_check_us: int  # when it is time to look again
    drain_token: str  # who was asked to come back idle, for a suspect
    drain_until_us: int  # until when nobody else is

    @property
    def size(self) -> int:
        """How many messages it has, without dead letters."""

    @property
    def consumer_count(self) -> int:
        """How many consumers there are."""

    def held_counts(self, token: str) -> tuple[int, int]:
        """How many messages are with this consumer, and with all of them."""

    def add_to_counter(self, what: str, more: int) -> None:
        """So many more of that have happened."""

    def totals(self) -> QueueTotals:
        """How it stands."""

    # Consumers.

    def get_consumer(self, token: str) -> ConsumerRecord | None:
        """The consumer of this incarnation."""

    def put_consumer(self, member: ConsumerRecord) -> None:
        """It is so now."""

    def remove_consumer(self, token: str) -> None:
        """It is gone, and hungry no more. It has no messages."""

    def expired_consumers(self, by_us: int, gone: AbstractSet[str], limit: int) -> list[ConsumerRecord]:
        """Whose time has ended by then, and those of these clients: whoever ended first comes first."""

    def next_expiry_us(self) -> int:
        """When the next time of a consumer ends; 0 if there is none."""

    def watched_clients(self) -> AbstractSet[str]:
        """The clients whose life matters."""

    def list_consumers(self, limit: int) -> list[tuple[ConsumerRecord, int]]:
        """So many consumers, whose time ends first first, and how many messages each has."""

    def add_waiting(self, token: str) -> int:
        """This consumer waits for messages, behind so many others; it keeps its place."""

    def remove_waiting(self, token: str) -> None:
        """It does not."""

    def first_waiting(self) -> str | None:
        """Who has waited longest."""

    # Messages that are ready.

    def add_ready(self, lane: str, message: StoredMessage) -> None:
        """Ready, behind all others of its lane, as a new entry."""

    def deliver_ready(self, lane: str, count: int, token: str, fence: int, now_us: int) -> list[QueueEntry]:
        """The first so many of the lane, now with this consumer; their fences count up from this one."""

    def remove_ready(self, lane: str, entry: str) -> None:
        """This one is nowhere now. It may take long in a long lane."""

    def ready_count(self, lane: str) -> int:
        """How many are ready in this lane."""

    # Messages that are delayed.

    def add_delayed(self, message: StoredMessage, due_us: int) -> None:
        """Not ready before then."""

    def pop_due(self, now_us: int, limit: int) -> list[StoredMessage]:
        """Those whose delay is over, the first first; they are nowhere now."""

    def next_due_us(self) -> int:
        """When the next delay is over; 0 if there is none."""

    # Messages that are with a consumer.

    def list_held(self, token: str, limit: int) -> list[QueueEntry]:
        """What is with this consumer, the smallest fence first."""

    def newest_held(self, token: str, limit: int) -> list[QueueEntry]:
        """The same, the largest fence first."""

    def held_entries(self, token: str, limit: int) -> list[str]:
        """The entries of what is with this consumer, the smallest fence first."""

    def find_held(self, token: str, entry: str) -> QueueEntry | None:
        """That one, if it is with this consumer."""

    def remove_held(self, token: str, entry: str) -> None:
        """It is nowhere now."""

    def deliver(self, lane: str, message: StoredMessage, token: str, fence: int, now_us: int) -> QueueEntry:
        """With this consumer, as a new entry, as if it had been taken from the lane."""

    # Messages that share a key. The first of them is ready, delayed or held.

    def key_head(self, key: str) -> KeyHead | None:
        """Where the first one is; none if there is none of this key."""

    def add_behind(self, message: StoredMessage) -> None:
        """Behind all others of its key. There are some."""

    def pop_next_of_key(self, key: str) -> StoredMessage | None:
        """The first is gone for good: who stood behind it is nowhere now, and to be put somewhere."""

    # Dead letters.

    def add_dead_letter(self, letter: StoredDeadLetter) -> None:
        """One more."""

    def get_dead_letter(self, id: str) -> StoredDeadLetter | None:  # noqa: A002 - a message's
        """The dead letter of this message."""

    def list_dead_letters(self, after: str, limit: int) -> list[StoredDeadLetter]:
        """Those after this place (`place_of`), in the order of it."""

    def remove_dead_letter(self, id: str) -> None:  # noqa: A002
        """It is no dead letter any more."""

    def evict_dead_letters(self, most: int) -> int:
        """Drop the oldest, so that there are no more than so many; how many were dropped."""

    # What is remembered for a while.

    def dedup_id(self, dedup: str, now_us: int) -> str:
        """The id that was sent under this key, if that still counts; else empty."""

    def remember_dedup(self, dedup: str, id: str, until_us: int) -> None:  # noqa: A002
        """That id was sent under this key."""

    def earlier_result(self, token: str, now_us: int) -> tuple[str, ...] | None:
        """What this call was answered before."""

    def remember_result(self, token: str, ids: tuple[str, ...], until_us: int) -> None:
        """This call was answered so."""

    # For people.

    def peek(self, place: str, limit: int, lane: str, now_us: int) -> list[PlacedMessage]:
        """The first messages of a place."""

    def check_consistency(self) -> tuple[int, list[str]]:
        """How many messages there are, dead ones too, and what is wrong with where they are."""


def lane_of(message: StoredMessage) -> str:
    """Where a message becomes ready."""
    return QUARANTINE if message.crashes >= QUARANTINE_AT else message.lane


def place_of(letter: StoredDeadLetter) -> str:
    """Where a dead letter stands in the order of deaths, as text: who compares texts compares places."""
    return f"{letter.died_us:020d}-{letter.message.id}"
