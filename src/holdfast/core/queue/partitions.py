"""Partitioned queues, for when one slot of a cluster is not enough.

Each partition is a queue like any other. A key always goes to the same partition, so its messages stay in order; there
is no order between partitions. `part_name` chooses the names so that a cluster spreads the partitions evenly over its
masters: partition 3 of 8 (counted from 0) has a slot in the fourth eighth of all slots.
"""

from __future__ import annotations

import random
from binascii import crc_hqx
from typing import TYPE_CHECKING, Any
from zlib import crc32

from holdfast.core.queue.queue import (
    DEDUP_KEY,
    NORMAL,
    ConsistencyReport,
    QueueStats,
    checked_bodies,
    checked_options,
    whole_number,
)
from holdfast.errors import QueueFull, Unavailable
from holdfast.names import checked_name, escaped_hash_tag, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.clock import Seconds
    from holdfast.commands.queue import NewMessage
    from holdfast.core.queue.queue import QueueCore

PARTS_MAX = 256
_SLOTS = 16384
# Attributes of a queue that a partitioned queue lacks; the error tells the caller to use a partition.
_ONLY_OF_PARTS = frozenset(("consumer", "consumers", "dlq", "peek", "worker"))


def part_name(queue_name: str, part: int, parts: int) -> str:
    """Return the name of a partition: the first candidate whose slot lies in this part of all slots."""
    attempt = 0
    while True:
        name = name_of(queue_name, f"{part}.{attempt}")
        if crc_hqx(escaped_hash_tag(name).encode(), 0) % _SLOTS * parts // _SLOTS == part:
            return name
        attempt += 1


def part_of(key: str, parts: int, what: str = "a key") -> int:
    """Return the number of the partition for this key."""
    return crc32(checked_name(key, what).encode()) % parts


def partitions_of(queue: QueueCore, parts: int) -> tuple[QueueCore, ...]:
    """Return the partitions of a queue, with its settings."""
    count = whole_number("parts", parts, 1, PARTS_MAX)
    return tuple(queue.named(part_name(queue.name, part, count)) for part in range(count))


class PartitionedQueueBase:
    """A queue in several partitions."""

    def __init__(self, name: str, cores: Sequence[QueueCore], parts: Sequence[Any]) -> None:
        self.name = name
        self._cores = tuple(cores)
        self._parts = tuple(parts)

    def __repr__(self) -> str:
        count = len(self._parts)
        return f"<queue {self.name!r} in {count} part{'s' if count > 1 else ''} on {self._cores[0].client.url}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _ONLY_OF_PARTS:
                message = f"a partitioned queue has no `{name}`: use the `{name}` of each queue in its `parts`"
            raise AttributeError(message, name=name, obj=self)

    def _part_of(self, key: str) -> Any:
        """Return the partition for this key."""
        return self._parts[part_of(key, len(self._parts))]

    def _part_for(self, key: str | None, dedup_key: str | None) -> Any:
        """Return the partition for a message: by its key; without one, by its deduplication key; else at random."""
        if key is not None:
            return self._part_of(key)
        if dedup_key is not None:
            return self._parts[part_of(dedup_key, len(self._parts), DEDUP_KEY)]
        return random.choice(self._parts)  # noqa: S311 - only to spread messages


async def publish_many(
    cores: Sequence[QueueCore],
    bodies: Iterable[Any],
    key: str | Callable[[Any], str] | None,
    delay: Seconds = 0,
    headers: dict[str, str] | None = None,
    timeout: Seconds | None = 0,
    priority: str = NORMAL,
) -> list[str]:
    """Publish each body into the partition of its key, and return the ids in the order of the bodies.

    Check all messages before publishing the first. An error names the messages that were published before it, in any
    partition.
    """
    options = checked_options(delay, headers, key, priority)
    until_ns = cores[0].until_ns(timeout)
    messages: dict[int, dict[int, NewMessage]] = {}  # by partition, and by the position among all bodies
    for number, body in enumerate(checked_bodies(bodies)):
        message = cores[0].new_message(body, options)
        part = part_of(message.key, len(cores)) if message.key else random.randrange(len(cores))  # noqa: S311
        messages.setdefault(part, {})[number] = message
    sent: dict[int, str] = {}
    for part, numbered in messages.items():
        try:
            ids = await cores[part].publish_all([*numbered.values()], until_ns)
        except (QueueFull, Unavailable) as error:
            sent.update(zip(numbered, error.sent, strict=False))
            raise error.after(tuple(sent[number] for number in sorted(sent))) from error
        sent.update(zip(numbered, ids, strict=True))
    return [sent[number] for number in sorted(sent)]


async def stats(cores: Sequence[QueueCore], name: str) -> QueueStats:
    """Return the statistics of all partitions together. A consumer counts once in each partition."""
    each = [await core.stats() for core in cores]
    counts: dict[str, int] = {}
    for one in each:
        for counter, count in one.counts.items():
            counts[counter] = counts.get(counter, 0) + count
    places = ("ready", "quarantined", "delayed", "in_flight", "dead", "consumers", "waiting", "behind")
    totals = {place: sum(getattr(one, place) for one in each) for place in places}
    oldest = max((one.oldest for one in each if one.oldest is not None), default=None)
    next_due = min((one.next_due for one in each if one.next_due is not None), default=None)
    return QueueStats(name=name, **totals, oldest=oldest, next_due=next_due, counts=counts)


async def check(cores: Sequence[QueueCore]) -> ConsistencyReport:
    """Check that every message of every partition is in exactly one place."""
    each = [(core.name, await core.check()) for core in cores]
    faults = tuple(f"{name}: {fault}" for name, report in each for fault in report.faults)
    return ConsistencyReport(sum(report.messages for _, report in each), faults)
