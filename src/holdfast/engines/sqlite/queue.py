"""Queues as rows: the state of a queue stays in its tables, and a command reads only the rows that its rule needs.

A message is one row, and its column `place` is where the message is: so it cannot be in two places. Separate indexes
find ready, delayed and held messages, the head of a key, the messages behind it, and consumers by their expiry; the
queue's own row has the totals. So a publish, a receive and an outcome cost the same with ten messages as with a
million, and with ten keys as with none.
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
from holdfast.engines.sqlite.queue_check import check
from holdfast.engines.sqlite.queue_tables import NEVER_US, forget_results
from holdfast.rules.lease_record import checked_fence
from holdfast.rules.queue.state import ConsumerRecord, KeyHead, QueueEntry, QueueTotals, position_of_dead_letter

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet


_FIELDS = "id, body, headers, key, home, sent_us, attempts, crashes, first_by, last_by, why"
_ENTRY = f"entry, lane, fence, received_us, {_FIELDS}"
_MESSAGES = "FROM queue_message WHERE queue = ? AND place ="
_PUT = (
    f"INSERT INTO queue_message (queue, place, lane, due_us, consumer, fence, received_us, {_FIELDS})"  # noqa: S608 - all texts stand here
    f" VALUES (?{', ?' * 17})"
)
_READY = f"SELECT entry, {_FIELDS} {_MESSAGES} 'ready' AND lane = ? ORDER BY entry LIMIT ?"
_OLDEST = f"SELECT sent_us {_MESSAGES} 'ready' AND lane = ? ORDER BY entry LIMIT 1"
_DUE_NOW = f"SELECT entry, {_FIELDS} {_MESSAGES} 'delayed' AND due_us <= ? ORDER BY due_us, entry LIMIT ?"
_DUE = f"SELECT due_us {_MESSAGES} 'delayed' ORDER BY due_us LIMIT 1"
_DELAYED = f"SELECT due_us, {_FIELDS} {_MESSAGES} 'delayed' ORDER BY due_us, entry LIMIT ?"
_HELD_BY = f"SELECT {_ENTRY} {_MESSAGES} 'held' AND consumer = ? ORDER BY fence, entry LIMIT ?"
_NEWEST = f"SELECT {_ENTRY} {_MESSAGES} 'held' AND consumer = ? ORDER BY fence DESC, entry DESC LIMIT ?"
_HELD_ENTRIES = f"SELECT entry {_MESSAGES} 'held' AND consumer = ? ORDER BY fence, entry LIMIT ?"
_COUNT_HELD = f"SELECT count(*) {_MESSAGES} 'held' AND consumer = ?"
_FIND_HELD = f"SELECT {_ENTRY} FROM queue_message WHERE entry = ? AND queue = ? AND consumer = ?"  # noqa: S608
_FIRST_HELD = f"SELECT entry {_MESSAGES} 'held' ORDER BY entry LIMIT ?"
_HELD = f"SELECT consumer, {_FIELDS} FROM queue_message WHERE entry IN ({_FIRST_HELD}) ORDER BY entry"  # noqa: S608
_DELIVER = "UPDATE queue_message SET (place, consumer, fence, received_us) = ('held', ?, ?, ?) WHERE entry = ?"
_DELETE = "DELETE FROM queue_message WHERE entry = ?"
# The condition repeats that of the partial index word for word, so that SQLite uses the index.
_HEAD = (
    f"SELECT place, consumer, {_ENTRY} FROM queue_message"  # noqa: S608
    " WHERE queue = ? AND key = ? AND key <> '' AND place <> 'behind'"
)
_NEXT_OF_KEY = f"SELECT entry, {_FIELDS} {_MESSAGES} 'behind' AND key = ? ORDER BY entry LIMIT 1"
_BEHIND = f"SELECT {_FIELDS} {_MESSAGES} 'behind' ORDER BY entry LIMIT ?"

_DEAD_LETTER = f"SELECT reason, died_us, {_FIELDS} FROM queue_dead_letter WHERE queue = ? AND"  # noqa: S608
_DEAD_LETTERS = f"{_DEAD_LETTER} place > ? ORDER BY place LIMIT ?"
_DEAD_POSITIONS = "SELECT place FROM queue_dead_letter WHERE queue = ? AND place > ? ORDER BY place LIMIT ?"
_ADD_DEAD_LETTER = f"INSERT INTO queue_dead_letter (queue, place, reason, died_us, {_FIELDS}) VALUES (?{', ?' * 14})"  # noqa: S608
_EVICT = (
    "DELETE FROM queue_dead_letter WHERE rowid IN"
    " (SELECT rowid FROM queue_dead_letter WHERE queue = ? ORDER BY place LIMIT ?)"
)

_CONSUMER_FIELDS = "token, client, holder, label, fence, ttl_ms, since_us, expires_us, blame, keeps_messages"
_CONSUMER = f"SELECT {_CONSUMER_FIELDS} FROM queue_consumer WHERE queue = ?"  # noqa: S608
_EXPIRED = f"{_CONSUMER} AND expires_us <= ? ORDER BY expires_us, token LIMIT ?"
_OF_CLIENT = f"{_CONSUMER} AND client = ? ORDER BY expires_us, token LIMIT ?"
_SOONEST = f"{_CONSUMER} ORDER BY expires_us, token LIMIT ?"
_PUT_CONSUMER = (
    f"INSERT INTO queue_consumer (queue, {_CONSUMER_FIELDS}) VALUES (?{', ?' * 10})"  # noqa: S608
    " ON CONFLICT (queue, token) DO UPDATE"
    " SET (ttl_ms, expires_us, blame) = (excluded.ttl_ms, excluded.expires_us, excluded.blame)"
)
_ADD_WAITING = (
    "UPDATE queue_consumer SET waiting ="
    " (SELECT coalesce(max(waiting), 0) + 1 FROM queue_consumer WHERE queue = ?1 AND waiting IS NOT NULL)"
    " WHERE queue = ?1 AND token = ?2 AND waiting IS NULL"
)
_AHEAD = (
    "SELECT count(*) FROM queue_consumer WHERE queue = ?1 AND waiting IS NOT NULL"
    " AND waiting < (SELECT waiting FROM queue_consumer WHERE queue = ?1 AND token = ?2)"
)
_REMOVE_WAITING = "UPDATE queue_consumer SET waiting = NULL WHERE queue = ? AND token = ? AND waiting IS NOT NULL"
_FIRST_WAITING = "SELECT token FROM queue_consumer WHERE queue = ? AND waiting IS NOT NULL ORDER BY waiting LIMIT 1"

_RESULT = "SELECT ids FROM queue_result WHERE queue = ? AND kind = ? AND key = ? AND until_us > ?"
_TOTALS = (
    "fence, checked_us, next_check_us, drain_token, drain_until_us, lanes,"
    " delayed, held, behind, dead, waiting, consumers, counts, results_until_us"
)
_LOAD = f"SELECT id, {_TOTALS} FROM queue WHERE name = ?"  # noqa: S608
_BEGIN = f"INSERT INTO queue (name, forget_us, {_TOTALS}) VALUES (?, 0{', ?' * 14})"  # noqa: S608
_SAVE = f"UPDATE queue SET ({_TOTALS}, forget_us) = (?{', ?' * 14}) WHERE id = ?"  # noqa: S608


class _QueueRow(NamedTuple):
    """The columns of the queue's own row."""

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
    results_until_us: int = 0


class StoredQueue:
    """One queue, for the length of one command."""

    def __init__(self, cursor: sqlite3.Cursor, name: str) -> None:
        self._cursor = cursor
        found = cursor.execute(_LOAD, (name,)).fetchone()
        if found is None:
            found = (cursor.execute(_BEGIN, (name, *_QueueRow())).lastrowid, *_QueueRow())
        self._id, self._before = found[0], _QueueRow(*found[1:])
        row = self._before
        self.fence, self.checked_us, self.next_check_us = (checked_fence(row.fence), row.checked_us, row.next_check_us)
        self.drain_token, self.drain_until_us = row.drain_token, row.drain_until_us
        self._lanes, self._counts = (Counter(json.loads(row.lanes)), Counter(json.loads(row.counts)))
        self._delayed, self._held, self._behind, self._dead = (row.delayed, row.held, row.behind, row.dead)
        self._waiting, self._consumers, self._results_until_us = (row.waiting, row.consumers, row.results_until_us)

    def _rows(self, select: str, *details: object) -> list[Any]:
        return self._cursor.execute(select, (self._id, *details)).fetchall()

    def _change(self, statement: str, *details: object) -> int:
        return self._cursor.execute(statement, (self._id, *details)).rowcount

    @property
    def size(self) -> int:
        return self._lanes.total() + self._delayed + self._held + self._behind

    @property
    def consumer_count(self) -> int:
        return self._consumers

    def held_counts(self, token: str) -> tuple[int, int]:
        return self._rows(_COUNT_HELD, token)[0][0], self._held

    def add_to_counter(self, what: str, more: int) -> None:
        if more:
            self._counts[what] += more

    def totals(self) -> QueueTotals:
        lanes = [lane for lane, ready in self._lanes.items() if ready and lane != QUARANTINE]
        firsts = [row[0] for lane in lanes for row in self._rows(_OLDEST, lane)]
        quarantined = self.ready_count(QUARANTINE)
        return QueueTotals(
            self._lanes.total() - quarantined,
            quarantined,
            self._delayed,
            self._held,
            self._dead,
            self._waiting,
            self._consumers,
            min(firsts, default=0),
            tuple(sorted(self._counts.items())),
            self._behind,
        )

    # Consumers.

    def get_consumer(self, token: str) -> ConsumerRecord | None:
        return next(map(_consumer, self._rows(f"{_CONSUMER} AND token = ?", token)), None)

    def put_consumer(self, consumer: ConsumerRecord) -> None:
        self._consumers += self.get_consumer(consumer.token) is None
        self._change(_PUT_CONSUMER, *consumer)

    def remove_consumer(self, token: str) -> None:
        self.remove_waiting(token)
        self._consumers -= self._change("DELETE FROM queue_consumer WHERE queue = ? AND token = ?", token)

    def expired_consumers(self, by_us: int, gone: AbstractSet[str], limit: int) -> list[ConsumerRecord]:
        found = {_consumer(row) for row in self._rows(_EXPIRED, by_us, limit)}
        found.update(_consumer(row) for client in gone for row in self._rows(_OF_CLIENT, client, limit))
        return sorted(found, key=lambda each: (each.expires_us, each.token))[:limit]

    def next_expiry_us(self) -> int:
        return next((_consumer(row).expires_us for row in self._rows(_SOONEST, 1)), 0)

    def watched_clients(self) -> AbstractSet[str]:
        return {row[0] for row in self._rows("SELECT DISTINCT client FROM queue_consumer WHERE queue = ?")}

    def concerned(self, command: object) -> AbstractSet[str]:
        """Return the clients whose death matters for this command.

        A reclaim needs all of them, a wake-up those of the waiting consumers, and a take-over the holder of the key.
        """
        if isinstance(command, ReclaimExpired):
            return self.watched_clients()
        first = self.key_head(command.key) if isinstance(command, TakeOver) else None
        holder = self.get_consumer(first.token) if first is not None else None
        clients = set() if holder is None else {holder.client}
        if self._waiting:
            select = "SELECT DISTINCT client FROM queue_consumer WHERE queue = ? AND waiting IS NOT NULL"
            clients.update(row[0] for row in self._rows(select))
        return clients

    def list_consumers(self, limit: int) -> list[tuple[ConsumerRecord, int]]:
        return [
            (consumer, self.held_counts(consumer.token)[0]) for consumer in map(_consumer, self._rows(_SOONEST, limit))
        ]

    def add_waiting(self, token: str) -> int:
        self._waiting += self._cursor.execute(_ADD_WAITING, (self._id, token)).rowcount
        ahead: int = self._rows(_AHEAD, token)[0][0]
        return ahead

    def remove_waiting(self, token: str) -> None:
        if self._waiting:
            self._waiting -= self._change(_REMOVE_WAITING, token)

    def first_waiting(self) -> str | None:
        return next((row[0] for row in self._rows(_FIRST_WAITING)), None) if self._waiting else None

    # Ready messages.

    def add_ready(self, lane: str, message: StoredMessage) -> None:
        self._change(_PUT, READY, lane, 0, "", 0, 0, *message)
        self._lanes[lane] += 1

    def deliver_ready(self, lane: str, count: int, token: str, fence: int, now_us: int) -> list[QueueEntry]:
        if not self._lanes[lane]:
            return []
        rows = enumerate(self._rows(_READY, lane, count), fence)
        found = [QueueEntry(str(row[0]), lane, StoredMessage(*row[1:]), number, now_us) for number, row in rows]
        self._cursor.executemany(_DELIVER, [(token, each.fence, now_us, int(each.entry)) for each in found])
        self._lanes[lane] -= len(found)
        self._held += len(found)
        return found

    def remove_ready(self, lane: str, entry: str) -> None:
        self._cursor.execute(_DELETE, (int(entry),))
        self._lanes[lane] -= 1

    def ready_count(self, lane: str) -> int:
        return self._lanes[lane]

    # Delayed messages.

    def add_delayed(self, message: StoredMessage, due_us: int) -> None:
        self._change(_PUT, DELAYED, "", due_us, "", 0, 0, *message)
        self._delayed += 1

    def pop_due(self, now_us: int, limit: int) -> list[StoredMessage]:
        if not self._delayed:
            return []
        found = self._rows(_DUE_NOW, now_us, limit)
        self._cursor.executemany(_DELETE, [row[:1] for row in found])
        self._delayed -= len(found)
        return [StoredMessage(*row[1:]) for row in found]

    def next_due_us(self) -> int:
        return next((row[0] for row in self._rows(_DUE)), 0) if self._delayed else 0

    # Messages held by a consumer.

    def list_held(self, token: str, limit: int) -> list[QueueEntry]:
        return list(map(_entry, self._rows(_HELD_BY, token, limit)))

    def newest_held(self, token: str, limit: int) -> list[QueueEntry]:
        return list(map(_entry, self._rows(_NEWEST, token, limit)))

    def held_entries(self, token: str, limit: int) -> list[str]:
        return [str(row[0]) for row in self._rows(_HELD_ENTRIES, token, limit)]

    def find_held(self, token: str, entry: str) -> QueueEntry | None:
        if not (entry.isascii() and entry.isdigit() and len(entry) < len(str(NEVER_US))):
            return None  # this engine made no such entry
        row = self._cursor.execute(_FIND_HELD, (int(entry), self._id, token)).fetchone()
        return None if row is None else _entry(row)

    def remove_held(self, token: str, entry: str) -> None:  # noqa: ARG002 - an entry is with one consumer
        self._cursor.execute(_DELETE, (int(entry),))
        self._held -= 1

    def deliver(self, lane: str, message: StoredMessage, token: str, fence: int, now_us: int) -> QueueEntry:
        self._change(_PUT, HELD, lane, 0, token, fence, now_us, *message)
        self._held += 1
        return QueueEntry(str(self._cursor.lastrowid), lane, message, fence, now_us)

    # Messages that share a key.

    def key_head(self, key: str) -> KeyHead | None:
        return next((KeyHead(row[0], row[1], _entry(row[2:])) for row in self._rows(_HEAD, key)), None)

    def add_behind(self, message: StoredMessage) -> None:
        self._change(_PUT, BEHIND, "", 0, "", 0, 0, *message)
        self._behind += 1

    def pop_next_of_key(self, key: str) -> StoredMessage | None:
        row = next(iter(self._rows(_NEXT_OF_KEY, key)), None) if self._behind else None
        if row is None:
            return None
        self._cursor.execute(_DELETE, row[:1])
        self._behind -= 1
        return StoredMessage(*row[1:])

    # Dead letters.

    def add_dead_letter(self, dead_letter: StoredDeadLetter) -> None:
        self.remove_dead_letter(dead_letter.message.id)
        self._change(
            _ADD_DEAD_LETTER,
            position_of_dead_letter(dead_letter),
            dead_letter.reason,
            dead_letter.died_us,
            *dead_letter.message,
        )
        self._dead += 1

    def get_dead_letter(self, id: str) -> StoredDeadLetter | None:  # noqa: A002
        return next(map(_dead_letter, self._rows(f"{_DEAD_LETTER} id = ?", id)), None)

    def list_dead_letters(self, after: str, limit: int) -> Iterator[StoredDeadLetter]:
        return map(_dead_letter, self._cursor.execute(_DEAD_LETTERS, (self._id, after, limit)))

    def dead_positions(self, after: str, limit: int) -> list[str]:
        return [row[0] for row in self._rows(_DEAD_POSITIONS, after, limit)]

    def remove_dead_letter(self, id: str) -> bool:  # noqa: A002
        return self._remove_dead("DELETE FROM queue_dead_letter WHERE queue = ? AND id = ?", id)

    def remove_dead_position(self, position: str) -> bool:
        return self._remove_dead("DELETE FROM queue_dead_letter WHERE queue = ? AND place = ?", position)

    def _remove_dead(self, delete: str, which: str) -> bool:
        removed = self._change(delete, which)
        self._dead -= removed
        return removed > 0

    def evict_dead_letters(self, most: int) -> int:
        over = max(0, self._dead - most)
        if over:
            self._dead -= self._change(_EVICT, over)
        return over

    # Results that are remembered for a while.

    def dedup_id(self, dedup_key: str, now_us: int) -> str:
        return next(iter(self._result("dedup", dedup_key, now_us) or ()), "")

    def remember_dedup(self, dedup_key: str, id: str, until_us: int) -> None:  # noqa: A002
        self._remember("dedup", dedup_key, (id,), until_us)

    def earlier_result(self, token: str, now_us: int) -> tuple[str, ...] | None:
        forget_results(self._cursor, now_us)
        return self._result("call", token, now_us)

    def remember_result(self, token: str, ids: tuple[str, ...], until_us: int) -> None:
        self._remember("call", token, ids, until_us)

    def _result(self, kind: str, key: str, now_us: int) -> tuple[str, ...] | None:
        return next((tuple(json.loads(row[0])) for row in self._rows(_RESULT, kind, key, now_us)), None)

    def _remember(self, kind: str, key: str, ids: Iterable[str], until_us: int) -> None:
        self._change(
            "INSERT OR REPLACE INTO queue_result VALUES (?, ?, ?, ?, ?)", kind, key, json.dumps([*ids]), until_us
        )
        self._results_until_us = max(self._results_until_us, until_us)

    # Inspection.

    def peek(self, place: str, limit: int, lane: str, now_us: int) -> list[PlacedMessage]:
        if place == DELAYED:
            delayed = self._rows(_DELAYED, limit)
            return [PlacedMessage(StoredMessage(*row[1:]), "", max(0, row[0] - now_us) // 1000) for row in delayed]
        if place == HELD:
            return [PlacedMessage(StoredMessage(*row[1:]), row[0], 0) for row in self._rows(_HELD, limit)]
        if place == BEHIND:
            return [PlacedMessage(StoredMessage(*row), "", 0) for row in self._rows(_BEHIND, limit)]
        return [PlacedMessage(StoredMessage(*row[1:]), "", 0) for row in self._rows(_READY, lane, limit)]

    def check_consistency(self) -> tuple[int, list[str]]:
        return check(self._cursor, self._id, self.totals())

    def save(self, wall_us: int, memory_us: int) -> None:
        """Write the queue's own row. `forget` deletes an empty queue some time after its last use."""
        marks = (self.fence, self.checked_us, self.next_check_us, self.drain_token, self.drain_until_us)
        sizes = (self._delayed, self._held, self._behind, self._dead, self._waiting, self._consumers)
        row = _QueueRow(*marks, _packed(self._lanes), *sizes, _packed(self._counts), self._results_until_us)
        used = self.size or self._dead or self._consumers
        forget_us = NEVER_US if used else max(wall_us + memory_us, self._results_until_us)
        self._cursor.execute(_SAVE, (*row, forget_us, self._id))


def _consumer(row: Any) -> ConsumerRecord:
    return ConsumerRecord._make((*row[:9], bool(row[9])))


def _entry(row: Any) -> QueueEntry:
    return QueueEntry(str(row[0]), row[1], StoredMessage(*row[4:]), *row[2:4])


def _dead_letter(row: Any) -> StoredDeadLetter:
    return StoredDeadLetter(row[0], row[1], StoredMessage(*row[2:]))


def _packed(numbers: Counter[str]) -> str:
    return json.dumps({word: number for word, number in numbers.items() if number}, separators=(",", ":"))
