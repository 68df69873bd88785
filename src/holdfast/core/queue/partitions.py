"""Queues in parts, where one slot of a cluster is not enough.

Each part is a queue like any other. A key always goes to the same part, so that its order is kept; there is none among
parts. Their names are chosen so that a cluster spreads them evenly over its masters: part 3 of 8 has a slot in the
fourth eighth of all slots.
"""

from __future__ import annotations

import copy
import random
from binascii import crc_hqx
from typing import TYPE_CHECKING, Any
from zlib import crc32

from holdfast.core.queue import queue
from holdfast.core.queue.queue import DEDUP_KEY, NORMAL, ConsistencyReport, QueueStats, _whole
from holdfast.errors import QueueFull, Unavailable
from holdfast.names import between_braces, checked_name, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.clock import Seconds
    from holdfast.commands.queue import NewMessage
    from holdfast.core.queue.queue import QueueBase

PARTS_MAX = 256
_SLOTS = 16384
# What a queue has and a queue in parts has not. Who asks for it is told where it is.
_OF_A_PART = frozenset(("consumer", "consumers", "dlq", "peek", "worker"))


def part_name(whole: str, part: int, parts: int) -> str:
    """The name of one part: the first of some whose slot lies in this part of all slots."""
    attempt = 0
    while True:
        name = name_of(whole, f"{part}.{attempt}")
        if crc_hqx(between_braces(name).encode(), 0) % _SLOTS * parts // _SLOTS == part:
            return name
        attempt += 1


def part_of(key: str, parts: int, what: str = "a key") -> int:
    """In which part messages of this key are."""
    return crc32(checked_name(key, what).encode()) % parts


class PartitionedBase:
    """A queue in so many parts."""

    def __init__(self, whole: QueueBase, parts: int) -> None:
        self.name = whole.name
        count = _whole("parts", parts, 1, PARTS_MAX)
        self._parts = tuple(_part(whole, part_name(whole.name, part, count)) for part in range(count))

    def __repr__(self) -> str:
        count = len(self._parts)
        return f"<queue {self.name!r} in {count} part{'s' if count > 1 else ''} on {self._parts[0]._client.url}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            why = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _OF_A_PART:
                why = f"a queue in parts has no `{name}` of the whole: each of its `parts` has one"
            raise AttributeError(why, name=name, obj=self)

    def _part_of(self, key: str) -> Any:
        """Where messages of this key are."""
        return self._parts[part_of(key, len(self._parts))]

    def _part_for(self, key: str | None, dedup_key: str | None) -> Any:
        """Where a message goes: to its key. Without one, where all go that must meet to be sent once; else anywhere."""
        if key is not None:
            return self._part_of(key)
        if dedup_key is not None:
            return self._parts[part_of(dedup_key, len(self._parts), DEDUP_KEY)]
        return random.choice(self._parts)  # noqa: S311 - to spread them


def _part(whole: QueueBase, name: str) -> QueueBase:
    part = copy.copy(whole)
    part.name = checked_name(name)
    return part


async def publish_many(
    whole: PartitionedBase,
    bodies: Iterable[Any],
    key: str | Callable[[Any], str] | None,
    delay: Seconds = 0,
    headers: dict[str, str] | None = None,
    timeout: Seconds | None = 0,
    priority: str = NORMAL,
) -> list[str]:
    """Send each into the part of its key; the ids in the order of the bodies.

    All are checked before the first is sent. The error tells what was sent before it, into whichever part.
    """
    terms = queue.checked_terms(delay, headers, key, priority)
    until_ns = queue._until_ns(whole._parts[0], timeout)
    drafts: dict[int, dict[int, NewMessage]] = {}  # by part, and by the place among all
    for number, body in enumerate(queue.many_bodies(bodies)):
        draft = whole._parts[0]._draft(body, terms)
        part = part_of(draft.key, len(whole._parts)) if draft.key else random.randrange(len(whole._parts))  # noqa: S311
        drafts.setdefault(part, {})[number] = draft
    sent: dict[int, str] = {}
    for part, numbered in drafts.items():
        try:
            ids = await queue.send_all(whole._parts[part], [*numbered.values()], until_ns)
        except (QueueFull, Unavailable) as error:
            sent.update(zip(numbered, error.sent, strict=False))
            raise error.after(tuple(sent[number] for number in sorted(sent))) from error
        sent.update(zip(numbered, ids, strict=True))
    return [sent[number] for number in sorted(sent)]


async def stats(parts: Sequence[QueueBase], name: str) -> QueueStats:
    """How all of them stand together. Consumers are counted in each part."""
    each = [await queue.stats(part) for part in parts]
    counts: dict[str, int] = {}
    for one in each:
        for word, count in one.counts.items():
            counts[word] = counts.get(word, 0) + count
    places = ("ready", "quarantined", "delayed", "in_flight", "dead", "consumers", "waiting", "behind")
    figures = {place: sum(getattr(one, place) for one in each) for place in places}
    oldest = max((one.oldest for one in each if one.oldest is not None), default=None)
    next_due = min((one.next_due for one in each if one.next_due is not None), default=None)
    return QueueStats(name=name, **figures, oldest=oldest, next_due=next_due, counts=counts)


async def check(parts: Sequence[QueueBase]) -> ConsistencyReport:
    """Whether every message is in exactly one place, of all parts."""
    each = [(part.name, await queue.check(part)) for part in parts]
    faults = tuple(f"{name}: {fault}" for name, sound in each for fault in sound.faults)
    return ConsistencyReport(sum(sound.messages for _, sound in each), faults)
