"""A queue state in memory: the memory engine uses it, and the tests compare the other engines with it."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain, islice

from holdfast.commands.queue import BEHIND, DELAYED, HELD, QUARANTINE, READY, StoredDeadLetter, StoredMessage
from holdfast.commands.queue_admin import PlacedMessage
from holdfast.rules.journal import ABSENT, Journal, Journaled
from holdfast.rules.queue.state import ConsumerRecord, KeyHead, QueueEntry, QueueTotals, position_of_dead_letter

_SPARE = 64


def key_order_faults(heads: Mapping[str, int], behind: Collection[str]) -> list[str]:
    """Return the faults in the order of keys, from the count of heads per key and the keys with messages behind."""
    several = sum(count > 1 for count in heads.values())
    headless = sum(key not in heads for key in behind)
    faults = [f"{several} keys have more than one first message"] if several else []
    return [*faults, f"{headless} keys have no first message"] if headless else faults


class _Remembered:
    """Values that are remembered until a given time, by key."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known: dict[str, tuple[object, int]] = {}
        self._expiries: list[tuple[int, str]] = []

    def reindex(self) -> None:
        """Build the order of the expiries again after a rollback."""
        self._expiries = sorted((until_us, key) for key, (_, until_us) in self._known.items())

    def get(self, key: str, now_us: int) -> object:
        value, until_us = self._known.get(key, (None, 0))
        return value if until_us > now_us else None

    def put(self, key: str, value: object, until_us: int) -> None:
        self._journal.append((self._known, key, self._known.get(key, ABSENT)))
        self._known[key] = (value, until_us)
        heapq.heappush(self._expiries, (until_us, key))

    def forget(self, now_us: int) -> None:
        while self._expiries and self._expiries[0][0] <= now_us:
            key = self._expiries[0][1]
            if self._known.get(key, (None, now_us + 1))[1] <= now_us:
                del self._known[key]  # before its expiry goes: an interrupt in between leaves nothing behind
            heapq.heappop(self._expiries)

    def __len__(self) -> int:
        return len(self._known)


class MemoryQueueState(Journaled):
    """A queue in this process. `QueueState` documents the methods. Each step is atomic: see `rules/journal.py`."""

    def __init__(self) -> None:
        super().__init__()
        self.fence = 0
        self.checked_us = self.next_check_us = self.drain_until_us = 0
        self.drain_token = ""
        self._number = 0
        self._counts: Counter[str] = Counter()
        self._consumers: dict[str, ConsumerRecord] = {}
        self._expiries: list[tuple[int, str]] = []  # (expiry, token); outdated pairs are skipped
        self._waiting: dict[str, None] = {}
        self._lanes: dict[str, OrderedDict[str, StoredMessage]] = {}  # by entry
        self._delayed: list[tuple[int, int, StoredMessage]] = []  # a heap of the values of `_due`
        self._due: dict[int, tuple[int, int, StoredMessage]] = {}  # by number
        self._held: dict[str, dict[str, QueueEntry]] = {}  # by consumer, then by entry, in the order of fences
        self._heads: dict[str, KeyHead] = {}  # by key
        self._behind: dict[str, dict[int, StoredMessage]] = {}  # by key, then by number
        self._behind_count = 0
        self._dead: dict[str, StoredDeadLetter] = {}
        self._dead_order: list[str] = []
        self._dedup, self._results = _Remembered(self.journal), _Remembered(self.journal)

    def _reindex(self) -> None:
        self._lanes = {
            lane: OrderedDict(sorted(line.items(), key=lambda each: int(each[0]))) for lane, line in self._lanes.items()
        }
        self._held = {
            token: dict(sorted(held.items(), key=lambda each: each[1].fence))
            for token, held in self._held.items()
            if held
        }
        self._behind = {key: dict(sorted(line.items())) for key, line in self._behind.items() if line}
        self._behind_count = sum(map(len, self._behind.values()))
        self._delayed = sorted(self._due.values())
        self._expiries = sorted((each.expires_us, token) for token, each in self._consumers.items())
        self._dead_order = sorted(map(position_of_dead_letter, self._dead.values()))
        self._dedup.reindex()
        self._results.reindex()

    @property
    def size(self) -> int:
        ready, held = sum(map(len, self._lanes.values())), sum(map(len, self._held.values()))
        return ready + held + len(self._delayed) + self._behind_count

    @property
    def consumer_count(self) -> int:
        return len(self._consumers)

    def held_counts(self, token: str) -> tuple[int, int]:
        return len(self._held.get(token, ())), sum(map(len, self._held.values()))

    def add_to_counter(self, name: str, more: int) -> None:
        if more:
            counts = self._counts
            count = counts.get(name, ABSENT)
            self.journal.append((counts, name, count))
            counts[name] = more if count is ABSENT else count + more

    def totals(self) -> QueueTotals:
        quarantined = self.ready_count(QUARANTINE)
        held = sum(map(len, self._held.values()))
        firsts = [
            next(iter(line.values())).published_us for lane, line in self._lanes.items() if line and lane != QUARANTINE
        ]
        ready = sum(map(len, self._lanes.values())) - quarantined
        return QueueTotals(
            ready,
            quarantined,
            len(self._delayed),
            held,
            len(self._dead),
            len(self._waiting),
            len(self._consumers),
            min(firsts, default=0),
            tuple(sorted(self._counts.items())),
            self._behind_count,
        )

    # Consumers.

    def get_consumer(self, token: str) -> ConsumerRecord | None:
        return self._consumers.get(token)

    def put_consumer(self, consumer: ConsumerRecord) -> None:
        self.journal.append((self._consumers, consumer.token, self._consumers.get(consumer.token, ABSENT)))
        self._consumers[consumer.token] = consumer
        heapq.heappush(self._expiries, (consumer.expires_us, consumer.token))
        if len(self._expiries) > 2 * len(self._consumers) + _SPARE:
            self._expiries = [(each.expires_us, token) for token, each in self._consumers.items()]
            heapq.heapify(self._expiries)

    def remove_consumer(self, token: str) -> None:
        self.journal.note(self._consumers, token)
        self._consumers.pop(token, None)
        self.remove_waiting(token)

    def expired_consumers(self, by_us: int, gone: AbstractSet[str], limit: int) -> list[ConsumerRecord]:
        found = [each for each in self._consumers.values() if each.expires_us <= by_us or each.client in gone]
        return sorted(found, key=lambda each: (each.expires_us, each.token))[:limit]

    def next_expiry_us(self) -> int:
        while self._expiries:
            expires_us, token = self._expiries[0]
            consumer = self._consumers.get(token)
            if consumer is not None and consumer.expires_us == expires_us:
                return expires_us
            heapq.heappop(self._expiries)
        return 0

    def watched_clients(self) -> AbstractSet[str]:
        return {consumer.client for consumer in self._consumers.values()}

    def list_consumers(self, limit: int) -> list[tuple[ConsumerRecord, int]]:
        first = sorted(self._consumers.values(), key=lambda each: (each.expires_us, each.token))[:limit]
        return [(consumer, len(self._held.get(consumer.token, ()))) for consumer in first]

    def add_waiting(self, token: str) -> int:
        if token not in self._waiting:
            self.journal.note(self._waiting, token)
            self._waiting[token] = None
        return list(self._waiting).index(token)

    def remove_waiting(self, token: str) -> None:
        if token in self._waiting:
            self.journal.note(self._waiting, token)
            del self._waiting[token]

    def first_waiting(self) -> str | None:
        return next(iter(self._waiting), None)

    # Ready messages.

    def add_ready(self, lane: str, message: StoredMessage) -> None:
        self._number += 1
        entry = str(self._number)
        line = self._lanes.get(lane)
        if line is None:
            line = self._lanes[lane] = OrderedDict()
        self.journal.append((line, entry, ABSENT))
        line[entry] = message
        if message.key:
            self._set_head(READY, "", QueueEntry(entry, lane, message))

    def _set_head(self, place: str, token: str, entry: QueueEntry) -> None:
        if entry.message.key:
            self.journal.note(self._heads, entry.message.key)
            self._heads[entry.message.key] = KeyHead(place, token, entry)

    def deliver_ready(self, lane: str, count: int, token: str, fence: int, now_us: int) -> list[QueueEntry]:
        line = self._lanes.get(lane)
        found: list[QueueEntry] = []
        if not line:
            return found
        note, held = self.journal.append, self._held.setdefault(token, {})
        for at, entry in enumerate(list(islice(line, count))):
            message = line[entry]
            delivered = QueueEntry(entry, lane, message, fence + at, now_us)
            note((line, entry, message))
            note((held, entry, ABSENT))
            del line[entry]
            held[entry] = delivered
            if message.key:
                self._set_head(HELD, token, delivered)
            found.append(delivered)
        return found

    def remove_ready(self, lane: str, entry: str) -> None:
        line = self._lanes[lane]
        self.journal.note(line, entry)
        del line[entry]

    def ready_count(self, lane: str) -> int:
        return len(self._lanes.get(lane, ()))

    # Delayed messages.

    def add_delayed(self, message: StoredMessage, due_us: int) -> None:
        self._number += 1
        delayed = (due_us, self._number, message)
        self.journal.append((self._due, self._number, ABSENT))
        self._due[self._number] = delayed
        heapq.heappush(self._delayed, delayed)
        self._set_head(DELAYED, "", QueueEntry(str(self._number), "", message))

    def pop_due(self, now_us: int, limit: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while len(found) < limit and self._delayed and self._delayed[0][0] <= now_us:
            delayed = self._delayed[0]
            self.journal.append((self._due, delayed[1], delayed))
            del self._due[delayed[1]]
            heapq.heappop(self._delayed)
            found.append(delayed[2])
        return found

    def next_due_us(self) -> int:
        return self._delayed[0][0] if self._delayed else 0

    # Messages held by a consumer.

    def list_held(self, token: str, limit: int) -> list[QueueEntry]:
        return list(islice(self._held.get(token, {}).values(), limit))

    def newest_held(self, token: str, limit: int) -> list[QueueEntry]:
        return list(islice(reversed(self._held.get(token, {}).values()), limit))

    def held_entries(self, token: str, limit: int) -> list[str]:
        return list(islice(self._held.get(token, {}), limit))

    def find_held(self, token: str, entry: str) -> QueueEntry | None:
        held = self._held.get(token)
        return None if held is None else held.get(entry)

    def remove_held(self, token: str, entry: str) -> None:
        entries = self._held[token]
        self.journal.append((entries, entry, entries[entry]))
        del entries[entry]
        if not entries:
            self.journal.append((self._held, token, entries))
            del self._held[token]

    def deliver(self, lane: str, message: StoredMessage, token: str, fence: int, now_us: int) -> QueueEntry:
        self._number += 1
        delivered = QueueEntry(str(self._number), lane, message, fence, now_us)
        held = self._held.setdefault(token, {})
        self.journal.append((held, delivered.entry, ABSENT))
        held[delivered.entry] = delivered
        self._set_head(HELD, token, delivered)
        return delivered

    # Messages that share a key.

    def key_head(self, key: str) -> KeyHead | None:
        return self._heads.get(key)

    def add_behind(self, message: StoredMessage) -> None:
        self._number += 1
        line = self._behind.setdefault(message.key, {})
        self.journal.append((line, self._number, ABSENT))
        line[self._number] = message
        self._behind_count += 1

    def pop_next_of_key(self, key: str) -> StoredMessage | None:
        line = self._behind.get(key)
        if line is None:
            self.journal.note(self._heads, key)
            self._heads.pop(key, None)
            return None
        number, following = next(iter(line.items()))
        self.journal.append((line, number, following))
        del line[number]
        self._behind_count -= 1
        if not line:
            self.journal.note(self._behind, key)
            del self._behind[key]
        return following

    # Dead letters.

    def add_dead_letter(self, dead_letter: StoredDeadLetter) -> None:
        self.remove_dead_letter(dead_letter.message.id)
        self.journal.note(self._dead, dead_letter.message.id)
        self._dead[dead_letter.message.id] = dead_letter
        insort(self._dead_order, position_of_dead_letter(dead_letter))

    def get_dead_letter(self, id: str) -> StoredDeadLetter | None:  # noqa: A002
        return self._dead.get(id)

    def list_dead_letters(self, after: str, limit: int) -> Iterator[StoredDeadLetter]:
        return (self._dead[position.partition("-")[2]] for position in self.dead_positions(after, limit))

    def dead_positions(self, after: str, limit: int) -> list[str]:
        begin = bisect_right(self._dead_order, after)
        return self._dead_order[begin : begin + limit]

    def remove_dead_letter(self, id: str) -> bool:  # noqa: A002
        dead_letter = self._dead.get(id)
        if dead_letter is None:
            return False
        self.journal.note(self._dead, id)
        del self._dead[id]
        del self._dead_order[bisect_left(self._dead_order, position_of_dead_letter(dead_letter))]
        return True

    def remove_dead_position(self, position: str) -> bool:
        dead_letter = self._dead.get(position.partition("-")[2])
        is_there = dead_letter is not None and position_of_dead_letter(dead_letter) == position
        return is_there and self.remove_dead_letter(position.partition("-")[2])

    def evict_dead_letters(self, most: int) -> int:
        evicted = self._dead_order[: max(0, len(self._dead_order) - most)]
        for position in evicted:
            self.remove_dead_letter(position.partition("-")[2])
        return len(evicted)

    # Results that are remembered for a while.

    def dedup_id(self, dedup_key: str, now_us: int) -> str:
        found = self._dedup.get(dedup_key, now_us)
        return found if isinstance(found, str) else ""

    def remember_dedup(self, dedup_key: str, id: str, until_us: int) -> None:  # noqa: A002
        self._dedup.put(dedup_key, id, until_us)

    def earlier_result(self, token: str, now_us: int) -> tuple[str, ...] | None:
        self._dedup.forget(now_us)
        self._results.forget(now_us)
        found = self._results.get(token, now_us)
        return found if isinstance(found, tuple) else None

    def remember_result(self, token: str, ids: tuple[str, ...], until_us: int) -> None:
        self._results.put(token, ids, until_us)

    # Inspection.

    def peek(self, place: str, limit: int, lane: str, now_us: int) -> list[PlacedMessage]:
        if place == DELAYED:
            first = heapq.nsmallest(limit, self._delayed)
            return [PlacedMessage(message, "", max(0, due_us - now_us) // 1000) for due_us, _, message in first]
        if place == HELD:
            entries = [(int(entry), token) for token, held in self._held.items() for entry in held]
            first_held = heapq.nsmallest(limit, entries)
            return [PlacedMessage(self._held[token][str(number)].message, token, 0) for number, token in first_held]
        if place == BEHIND:
            behind = heapq.nsmallest(limit, chain.from_iterable(line.items() for line in self._behind.values()))
            return [PlacedMessage(message, "", 0) for _, message in behind]
        return [
            PlacedMessage(message, "", 0) for message in islice(self._lanes.get(lane, OrderedDict()).values(), limit)
        ]

    def check_consistency(self) -> tuple[int, list[str]]:
        ready = [message for line in self._lanes.values() for message in line.values()]
        held = [each.message for entries in self._held.values() for each in entries.values()]
        first = [*ready, *held, *(message for _, _, message in self._delayed)]
        behind = (message for line in self._behind.values() for message in line.values())
        places = Counter(chain((message.id for message in chain(first, behind)), self._dead))
        faults = [f"message {id_} is in {count} places" for id_, count in places.items() if count > 1]
        faults += [
            f"{len(entries)} messages are held by an unknown consumer"
            for token, entries in self._held.items()
            if token not in self._consumers
        ]
        faults += key_order_faults(Counter(message.key for message in first if message.key), self._behind)
        if len(self._dead_order) != len(self._dead):
            faults.append(f"{len(self._dead)} dead letters, {len(self._dead_order)} of them in order")
        return sum(places.values()), faults

    def is_empty(self) -> bool:
        """Return whether the engine may forget this queue."""
        return not (self._consumers or self._dead or self._dedup or self._results or self.size)
