"""Queues as rows: the depot that the law asks stays in its tables, and only what it asks for is looked up.

A live message is one row, which says in which place it is: so it cannot be in two. Ready, delayed and held messages,
the first of a key and those behind it are each found by an index of their own, consumers by the end of their time;
figures stand in the queue's own row. So a publish, a take and a conclusion cost the same whether ten messages are there
or a million, and whether they share ten keys or none.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.commands.queue import (
    BEHIND,
    DELAYED,
    HELD,
    QUARANTINE,
    READY,
    ReclaimExpired,
    StoredDeadLetter,
    StoredMessage,
    TakeOver,
)
from holdfast.commands.queue_admin import PlacedMessage
from holdfast.engines.sqlite.queue_check import audit
from holdfast.engines.sqlite.queue_tables import NEVER_US, forget_known
from holdfast.rules.queue.state import ConsumerRecord, KeyHead, QueueEntry, QueueTotals, dead_letter_position

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet


_FIELDS = "id, body, headers, key, home, sent_us, attempts, crashes, first_by, last_by, why"
_ENTRY = f"entry, lane, fence, taken_us, {_FIELDS}"
_MESSAGES = "FROM queue_message WHERE queue = ? AND place ="
_PUT = (
    f"INSERT INTO queue_message (queue, place, lane, due_us, consumer, fence, taken_us, {_FIELDS})"  # noqa: S608 - of our own words
    f" VALUES (?{', ?' * 17})"
)
_READY = f"SELECT entry, {_FIELDS} {_MESSAGES} 'ready' AND lane = ? ORDER BY entry LIMIT ?"
_OLDEST = f"SELECT sent_us {_MESSAGES} 'ready' AND lane = ? ORDER BY entry LIMIT 1"
_RIPE = f"SELECT entry, {_FIELDS} {_MESSAGES} 'delayed' AND due_us <= ? ORDER BY due_us, entry LIMIT ?"
_DUE = f"SELECT due_us {_MESSAGES} 'delayed' ORDER BY due_us LIMIT 1"
_DELAYED = f"SELECT due_us, {_FIELDS} {_MESSAGES} 'delayed' ORDER BY due_us, entry LIMIT ?"
_HAS = f"SELECT {_ENTRY} {_MESSAGES} 'held' AND consumer = ? ORDER BY fence, entry LIMIT ?"
_NEWEST = f"SELECT {_ENTRY} {_MESSAGES} 'held' AND consumer = ? ORDER BY fence DESC, entry DESC LIMIT ?"
_NAMES = f"SELECT entry {_MESSAGES} 'held' AND consumer = ? ORDER BY fence, entry LIMIT ?"
_LOAD_OF = f"SELECT count(*) {_MESSAGES} 'held' AND consumer = ?"
_FIND = f"SELECT {_ENTRY} FROM queue_message WHERE entry = ? AND queue = ? AND consumer = ?"  # noqa: S608
_FIRST_HELD = f"SELECT entry {_MESSAGES} 'held' ORDER BY entry LIMIT ?"
_HELD = f"SELECT consumer, {_FIELDS} FROM queue_message WHERE entry IN ({_FIRST_HELD}) ORDER BY entry"  # noqa: S608
_TAKE = "UPDATE queue_message SET (place, consumer, fence, taken_us) = ('held', ?, ?, ?) WHERE entry = ?"
_DROP = "DELETE FROM queue_message WHERE entry = ?"
# The words of the index, as they are: by them it is known to have every row that is asked for.
_FIRST = (
    f"SELECT place, consumer, {_ENTRY} FROM queue_message"  # noqa: S608
    " WHERE queue = ? AND key = ? AND key <> '' AND place <> 'behind'"
)
_NEXT = f"SELECT entry, {_FIELDS} {_MESSAGES} 'behind' AND key = ? ORDER BY entry LIMIT 1"
_BEHIND = f"SELECT {_FIELDS} {_MESSAGES} 'behind' ORDER BY entry LIMIT ?"

_LETTER = f"SELECT reason, died_us, {_FIELDS} FROM queue_letter WHERE queue = ? AND"  # noqa: S608
_LETTERS = f"{_LETTER} place > ? ORDER BY place LIMIT ?"
_BURY = f"INSERT INTO queue_letter (queue, place, reason, died_us, {_FIELDS}) VALUES (?{', ?' * 14})"  # noqa: S608
_EVICT = (
    "DELETE FROM queue_letter WHERE rowid IN (SELECT rowid FROM queue_letter WHERE queue = ? ORDER BY place LIMIT ?)"
)

_WHO = "token, client, owner, label, fence, ttl_ms, since_us, ends_us, fallen, keeps"
_MEMBER = f"SELECT {_WHO} FROM queue_consumer WHERE queue = ?"  # noqa: S608
_LATE = f"{_MEMBER} AND ends_us <= ? ORDER BY ends_us, token LIMIT ?"
_GONE = f"{_MEMBER} AND client = ? ORDER BY ends_us, token LIMIT ?"
_SOONEST = f"{_MEMBER} ORDER BY ends_us, token LIMIT ?"
_PUT_MEMBER = (
    f"INSERT INTO queue_consumer (queue, {_WHO}) VALUES (?{', ?' * 10}) ON CONFLICT (queue, token) DO UPDATE"  # noqa: S608
    " SET (ttl_ms, ends_us, fallen) = (excluded.ttl_ms, excluded.ends_us, excluded.fallen)"
)
_HUNGER = (
    "UPDATE queue_consumer SET hungry ="
    " (SELECT coalesce(max(hungry), 0) + 1 FROM queue_consumer WHERE queue = ?1 AND hungry IS NOT NULL)"
    " WHERE queue = ?1 AND token = ?2 AND hungry IS NULL"
)
_AHEAD = (
    "SELECT count(*) FROM queue_consumer WHERE queue = ?1 AND hungry IS NOT NULL"
    " AND hungry < (SELECT hungry FROM queue_consumer WHERE queue = ?1 AND token = ?2)"
)
_SATED = "UPDATE queue_consumer SET hungry = NULL WHERE queue = ? AND token = ? AND hungry IS NOT NULL"
_HUNGRIEST = "SELECT token FROM queue_consumer WHERE queue = ? AND hungry IS NOT NULL ORDER BY hungry LIMIT 1"

_KNOWN = "SELECT what FROM queue_known WHERE queue = ? AND kind = ? AND key = ? AND until_us > ?"
_FIGURES = (
    "fence, looked_us, look_us, called, called_us, lanes,"
    " delayed, held, behind, dead, hungry, consumers, counts, known_us"
)
_LOAD = f"SELECT id, {_FIGURES} FROM queue WHERE name = ?"  # noqa: S608
_BEGIN = f"INSERT INTO queue (name, forget_us, {_FIGURES}) VALUES (?, 0{', ?' * 14})"  # noqa: S608
_SAVE = f"UPDATE queue SET ({_FIGURES}, forget_us) = (?{', ?' * 14}) WHERE id = ?"  # noqa: S608


class _Figures(NamedTuple):
    """What stands in the queue's own row."""

    fence: int = 0
    checked_us: int = 0
    next_check_us: int = 0
    drain_token: str = ""
    drain_until_us: int = 0
    lanes: str = "{}"
    delayed: int = 0
    held: int = 0
    behind: int = 0
    dead: int = 0
    waiting: int = 0
    consumers: int = 0
    counts: str = "{}"
    known_us: int = 0


class StoredQueue:
    """One queue, for the length of one command."""

    def __init__(self, link: sqlite3.Cursor, name: str) -> None:
        self._link = link
        found = link.execute(_LOAD, (name,)).fetchone()
        if found is None:
            found = (link.execute(_BEGIN, (name, *_Figures())).lastrowid, *_Figures())
        self._id, self._before = found[0], _Figures(*found[1:])
        was = self._before
        self.fence, self.checked_us, self.next_check_us = was.fence, was.checked_us, was.next_check_us
        self.drain_token, self.drain_until_us = was.drain_token, was.drain_until_us
        self._lanes, self._counts = Counter(json.loads(was.lanes)), Counter(json.loads(was.counts))
        self._delayed, self._held, self._behind, self._dead = was.delayed, was.held, was.behind, was.dead
        self._hungry, self._consumers, self._known_us = was.waiting, was.consumers, was.known_us

    def _all(self, ask: str, *details: object) -> list[Any]:
        return self._link.execute(ask, (self._id, *details)).fetchall()

    def _do(self, ask: str, *details: object) -> int:
        return self._link.execute(ask, (self._id, *details)).rowcount

    @property
    def size(self) -> int:
        return self._lanes.total() + self._delayed + self._held + self._behind

    @property
    def consumer_count(self) -> int:
        return self._consumers

    def held_counts(self, token: str) -> tuple[int, int]:
        return self._all(_LOAD_OF, token)[0][0], self._held

    def add_to_counter(self, what: str, more: int) -> None:
        if more:
            self._counts[what] += more

    def totals(self) -> QueueTotals:
        lanes = [lane for lane, ready in self._lanes.items() if ready and lane != QUARANTINE]
        firsts = [row[0] for lane in lanes for row in self._all(_OLDEST, lane)]
        quarantined = self.ready_count(QUARANTINE)
        return QueueTotals(
            self._lanes.total() - quarantined,
            quarantined,
            self._delayed,
            self._held,
            self._dead,
            self._hungry,
            self._consumers,
            min(firsts, default=0),
            tuple(sorted(self._counts.items())),
            self._behind,
        )

    # Consumers.

    def get_consumer(self, token: str) -> ConsumerRecord | None:
        return next(map(_member, self._all(f"{_MEMBER} AND token = ?", token)), None)

    def put_consumer(self, member: ConsumerRecord) -> None:
        self._consumers += self.get_consumer(member.token) is None
        self._do(_PUT_MEMBER, *member)

    def remove_consumer(self, token: str) -> None:
        self.remove_waiting(token)
        self._consumers -= self._do("DELETE FROM queue_consumer WHERE queue = ? AND token = ?", token)

    def expired_consumers(self, by_us: int, gone: AbstractSet[str], limit: int) -> list[ConsumerRecord]:
        found = {_member(row) for row in self._all(_LATE, by_us, limit)}
        found.update(_member(row) for client in gone for row in self._all(_GONE, client, limit))
        return sorted(found, key=lambda each: (each.expires_us, each.token))[:limit]

    def next_expiry_us(self) -> int:
        return next((_member(row).expires_us for row in self._all(_SOONEST, 1)), 0)

    def watched_clients(self) -> AbstractSet[str]:
        return {row[0] for row in self._all("SELECT DISTINCT client FROM queue_consumer WHERE queue = ?")}

    def concerned(self, command: object) -> AbstractSet[str]:
        """The clients whose life matters for this command: a look needs all, a ring those who wait for it.

        Whoever would take something over has to know whether its holder lives.
        """
        if isinstance(command, ReclaimExpired):
            return self.watched_clients()
        first = self.key_head(command.key) if isinstance(command, TakeOver) else None
        holder = self.get_consumer(first.token) if first is not None else None
        clients = set() if holder is None else {holder.client}
        if self._hungry:
            ask = "SELECT DISTINCT client FROM queue_consumer WHERE queue = ? AND hungry IS NOT NULL"
            clients.update(row[0] for row in self._all(ask))
        return clients

    def list_consumers(self, limit: int) -> list[tuple[ConsumerRecord, int]]:
        return [(member, self.held_counts(member.token)[0]) for member in map(_member, self._all(_SOONEST, limit))]

    def add_waiting(self, token: str) -> int:
        self._hungry += self._link.execute(_HUNGER, (self._id, token)).rowcount
        ahead: int = self._all(_AHEAD, token)[0][0]
        return ahead

    def remove_waiting(self, token: str) -> None:
        if self._hungry:
            self._hungry -= self._do(_SATED, token)

    def first_waiting(self) -> str | None:
        return next((row[0] for row in self._all(_HUNGRIEST)), None) if self._hungry else None

    # Messages that are ready.

    def add_ready(self, lane: str, message: StoredMessage) -> None:
        self._do(_PUT, READY, lane, 0, "", 0, 0, *message)
        self._lanes[lane] += 1

    def deliver_ready(self, lane: str, count: int, token: str, fence: int, now_us: int) -> list[QueueEntry]:
        if not self._lanes[lane]:
            return []
        rows = enumerate(self._all(_READY, lane, count), fence)
        found = [QueueEntry(str(row[0]), lane, StoredMessage(*row[1:]), number, now_us) for number, row in rows]
        self._link.executemany(_TAKE, [(token, each.fence, now_us, int(each.entry)) for each in found])
        self._lanes[lane] -= len(found)
        self._held += len(found)
        return found

    def remove_ready(self, lane: str, entry: str) -> None:
        self._link.execute(_DROP, (int(entry),))
        self._lanes[lane] -= 1

    def ready_count(self, lane: str) -> int:
        return self._lanes[lane]

    # Messages that are delayed.

    def add_delayed(self, message: StoredMessage, due_us: int) -> None:
        self._do(_PUT, DELAYED, "", due_us, "", 0, 0, *message)
        self._delayed += 1

    def pop_due(self, now_us: int, limit: int) -> list[StoredMessage]:
        if not self._delayed:
            return []
        found = self._all(_RIPE, now_us, limit)
        self._link.executemany(_DROP, [row[:1] for row in found])
        self._delayed -= len(found)
        return [StoredMessage(*row[1:]) for row in found]

    def next_due_us(self) -> int:
        return next((row[0] for row in self._all(_DUE)), 0) if self._delayed else 0

    # Messages that are with a consumer.

    def list_held(self, token: str, limit: int) -> list[QueueEntry]:
        return list(map(_entry, self._all(_HAS, token, limit)))

    def newest_held(self, token: str, limit: int) -> list[QueueEntry]:
        return list(map(_entry, self._all(_NEWEST, token, limit)))

    def held_entries(self, token: str, limit: int) -> list[str]:
        return [str(row[0]) for row in self._all(_NAMES, token, limit)]

    def find_held(self, token: str, entry: str) -> QueueEntry | None:
        if not (entry.isascii() and entry.isdigit() and len(entry) < len(str(NEVER_US))):
            return None  # not one of ours
        row = self._link.execute(_FIND, (int(entry), self._id, token)).fetchone()
        return None if row is None else _entry(row)

    def remove_held(self, token: str, entry: str) -> None:  # noqa: ARG002 - an entry is with one consumer
        self._link.execute(_DROP, (int(entry),))
        self._held -= 1

    def deliver(self, lane: str, message: StoredMessage, token: str, fence: int, now_us: int) -> QueueEntry:
        self._do(_PUT, HELD, lane, 0, token, fence, now_us, *message)
        self._held += 1
        return QueueEntry(str(self._link.lastrowid), lane, message, fence, now_us)

    # Messages that share a key.

    def key_head(self, key: str) -> KeyHead | None:
        return next((KeyHead(row[0], row[1], _entry(row[2:])) for row in self._all(_FIRST, key)), None)

    def add_behind(self, message: StoredMessage) -> None:
        self._do(_PUT, BEHIND, "", 0, "", 0, 0, *message)
        self._behind += 1

    def pop_next_of_key(self, key: str) -> StoredMessage | None:
        row = next(iter(self._all(_NEXT, key)), None) if self._behind else None
        if row is None:
            return None
        self._link.execute(_DROP, row[:1])
        self._behind -= 1
        return StoredMessage(*row[1:])

    # Dead letters.

    def add_dead_letter(self, letter: StoredDeadLetter) -> None:
        self.remove_dead_letter(letter.message.id)
        self._do(_BURY, dead_letter_position(letter), letter.reason, letter.died_us, *letter.message)
        self._dead += 1

    def get_dead_letter(self, id: str) -> StoredDeadLetter | None:  # noqa: A002
        return next(map(_letter, self._all(f"{_LETTER} id = ?", id)), None)

    def list_dead_letters(self, after: str, limit: int) -> list[StoredDeadLetter]:
        return list(map(_letter, self._all(_LETTERS, after, limit)))

    def remove_dead_letter(self, id: str) -> None:  # noqa: A002
        self._dead -= self._do("DELETE FROM queue_letter WHERE queue = ? AND id = ?", id)

    def evict_dead_letters(self, most: int) -> int:
        over = max(0, self._dead - most)
        if over:
            self._dead -= self._do(_EVICT, over)
        return over

    # What is remembered for a while.

    def dedup_id(self, dedup: str, now_us: int) -> str:
        return next(iter(self._recalled("sent", dedup, now_us) or ()), "")

    def remember_dedup(self, dedup: str, id: str, until_us: int) -> None:  # noqa: A002
        self._recall("sent", dedup, (id,), until_us)

    def earlier_result(self, token: str, now_us: int) -> tuple[str, ...] | None:
        forget_known(self._link, now_us)
        return self._recalled("said", token, now_us)

    def remember_result(self, token: str, ids: tuple[str, ...], until_us: int) -> None:
        self._recall("said", token, ids, until_us)

    def _recalled(self, kind: str, key: str, now_us: int) -> tuple[str, ...] | None:
        return next((tuple(json.loads(row[0])) for row in self._all(_KNOWN, kind, key, now_us)), None)

    def _recall(self, kind: str, key: str, ids: Iterable[str], until_us: int) -> None:
        self._do("INSERT OR REPLACE INTO queue_known VALUES (?, ?, ?, ?, ?)", kind, key, json.dumps([*ids]), until_us)
        self._known_us = max(self._known_us, until_us)

    # For people.

    def peek(self, place: str, limit: int, lane: str, now_us: int) -> list[PlacedMessage]:
        if place == DELAYED:
            delayed = self._all(_DELAYED, limit)
            return [PlacedMessage(StoredMessage(*row[1:]), "", max(0, row[0] - now_us) // 1000) for row in delayed]
        if place == HELD:
            return [PlacedMessage(StoredMessage(*row[1:]), row[0], 0) for row in self._all(_HELD, limit)]
        if place == BEHIND:
            return [PlacedMessage(StoredMessage(*row), "", 0) for row in self._all(_BEHIND, limit)]
        return [PlacedMessage(StoredMessage(*row[1:]), "", 0) for row in self._all(_READY, lane, limit)]

    def check_consistency(self) -> tuple[int, list[str]]:
        return audit(self._link, self._id, self.totals())

    def save(self, wall_us: int, memory_us: int) -> None:
        """Write the queue's own row, if it has changed. One that is over is forgotten a while after its last use."""
        told = (
            self.fence,
            self.checked_us,
            self.next_check_us,
            self.drain_token,
            self.drain_until_us,
            _packed(self._lanes),
        )
        sizes = (self._delayed, self._held, self._behind, self._dead, self._hungry, self._consumers)
        now = _Figures(*told, *sizes, _packed(self._counts), self._known_us)
        used = self.size or self._dead or self._consumers
        forget_us = NEVER_US if used else max(wall_us + memory_us, self._known_us)
        self._link.execute(_SAVE, (*now, forget_us, self._id))


def _member(row: Any) -> ConsumerRecord:
    return ConsumerRecord._make((*row[:9], bool(row[9])))


def _entry(row: Any) -> QueueEntry:
    return QueueEntry(str(row[0]), row[1], StoredMessage(*row[4:]), *row[2:4])


def _letter(row: Any) -> StoredDeadLetter:
    return StoredDeadLetter(row[0], row[1], StoredMessage(*row[2:]))


def _packed(numbers: Counter[str]) -> str:
    return json.dumps({word: number for word, number in numbers.items() if number}, separators=(",", ":"))
