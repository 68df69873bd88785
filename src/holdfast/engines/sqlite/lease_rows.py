"""Leases as rows: how the record of a name is loaded, and how its changes are stored.

A name without waiters is one row: a quiet command reads and writes that row and nothing else. Waiters and tombstones
have tables of their own; the row contains which clients wait and when the last tombstone ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.engines.sqlite.waiting_line import StoredTombstones, StoredWaitingLine, add_tombstone, join
from holdfast.errors import UnreadableRecord
from holdfast.interrupts import raise_if_of_signal
from holdfast.rules import forget_at_us
from holdfast.rules.lease_record import (
    NO_TOMBSTONES,
    NO_WAITERS,
    HolderRecord,
    Line,
    MemoryTombstones,
    Record,
    Tombstones,
    checked_fence,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping


# The errors of code that meets a value that holdfast did not write.
DAMAGE = (ValueError, TypeError, LookupError, OverflowError, AttributeError, RecursionError)
_NEVER_US = 2**62
_INSERT = "INSERT INTO lease (name, look_us, body) VALUES (?, ?, ?)"
# More than can be added between two calls of `forget`, so that names that are used once do not accumulate.
_FORGET_AT_ONCE = 200


class Row(NamedTuple):
    """A record and its stored text; the text is empty if there is no row."""

    record: Record
    body: str

    def quiet(self, client: str) -> bool:
        """Return true if the record concerns no other client: no waiter, tombstone, offer or other holder."""
        record, holder = self.record, self.record.holder
        mine = holder is None or (holder.client == client and not holder.offered)
        return mine and not record.waiters.clients and not record.tombstones.ends_us


def packed(record: Record, memory_us: int) -> str:
    """Return the record as text, one line per value.

    The lines are fence, last token, last use, memory, end of the tombstones and waiting clients; then the lines of the
    holder, with its process last. SQLite binds and reads one column faster than a dozen.
    """
    head = f"{record.fence}\n{record.last}\n{record.touched_us}\n{memory_us}\n{record.tombstones.ends_us}\n"
    clients = record.waiters.clients
    waiting = _packed_clients(clients) if clients else ""
    held = record.holder
    if held is None:
        return f"{head}{waiting}\n"
    times = f"{held.ttl_ms}\n{held.since_us}\n{held.expires_us}\n{held.offered:d}"
    return f"{head}{waiting}\n{held.token}\n{held.client}\n{held.fence}\n{times}\n{held.holder}"


def unpacked(cursor: sqlite3.Cursor, name: str, body: str) -> tuple[Record, int]:
    """Return the record, and for how long the last client that used it wants it remembered."""
    fence, last, touched_us, memory_us, ends_us, waiting, *holding = body.split("\n", 13)
    holder = None
    if not holding:
        raise ValueError("it ends too early")
    if holding[0]:
        token, client, held, ttl_ms, since_us, expires_us, offered, process = holding
        times = (_number(ttl_ms), _number(since_us), _number(expires_us))
        holder = HolderRecord(token, client, process, checked_fence(_number(held)), *times, offered == "1")
    waiters: Line = StoredWaitingLine(cursor, name, _clients(waiting)) if waiting else NO_WAITERS
    tombstones: Tombstones = StoredTombstones(cursor, name, _number(ends_us)) if ends_us != "0" else NO_TOMBSTONES
    record = Record(checked_fence(_number(fence)), holder, waiters, tombstones, last, _number(touched_us))
    return record, _number(memory_us)


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number <= _NEVER_US:
        raise ValueError(f"it has the number {text}")
    return number


def load(cursor: sqlite3.Cursor, name: str) -> Row:
    """Return the row of a name; an empty record if there is none."""
    found = cursor.execute("SELECT body FROM lease WHERE name = ?", (name,)).fetchone()
    return Row(Record(), "") if found is None else Row(unpacked(cursor, name, found[0])[0], found[0])


def store(cursor: sqlite3.Cursor, name: str, row: Row, after: Record, memory_us: int) -> Row:
    """Write the changes of the rule; return the new row.

    The insert sets `look_us`, the time at which `forget` checks whether the name can be forgotten; `forget` moves it.
    """
    before = row.record
    if after.waiters is not before.waiters:
        _store_waiters(cursor, name, after.waiters)
    if after.tombstones is not before.tombstones:
        _store_tombstones(cursor, name, after.tombstones)
    body = packed(after, memory_us)
    if row.body:
        cursor.execute("UPDATE lease SET body = ? WHERE name = ?", (body, name))
    else:
        cursor.execute(_INSERT, (name, forget_at_us(after, memory_us), body))
    return Row(after, body)


def exchange(cursor: sqlite3.Cursor, name: str, row: Row, after: Record, memory_us: int) -> Row | None:
    """Replace a quiet row if it is still stored unchanged, in one statement that is its own transaction."""
    body = packed(after, memory_us)
    cursor.execute("UPDATE lease SET body = ? WHERE name = ? AND body = ?", (body, name, row.body))
    return Row(after, body) if cursor.rowcount else None


def keep_fences_only(cursor: sqlite3.Cursor, now_us: int, memory_us: int) -> None:
    """End every lease, waiter and tombstone; the fences stay."""
    known = cursor.execute("SELECT name, body FROM lease").fetchall()
    for table in ("lease", "waiter", "tombstone"):
        cursor.execute(f"DELETE FROM {table}")  # noqa: S608
    for name, body in known:
        record = Record(fence=int(body.partition("\n")[0]), touched_us=now_us)
        cursor.execute(_INSERT, (name, forget_at_us(record, memory_us), packed(record, memory_us)))


def forget(cursor: sqlite3.Cursor, now_us: int) -> None:
    """Delete a few names and tombstones that need not be remembered any more, so that no command pays for many.

    Skip a damaged record, so that it affects no other name.
    """
    select = "SELECT name, CAST(body AS BLOB) FROM lease WHERE look_us <= ? LIMIT ?"
    for name, body in cursor.execute(select, (now_us, _FORGET_AT_ONCE)).fetchall():
        look_us = _forget_at_us(cursor, name, body)
        if look_us > now_us:
            cursor.execute("UPDATE lease SET look_us = ? WHERE name = ?", (look_us, name))
        else:
            cursor.execute("DELETE FROM lease WHERE name = ?", (name,))
            cursor.execute("DELETE FROM waiter WHERE name = ?", (name,))
    ended = "SELECT name, token FROM tombstone WHERE until_us <= ? LIMIT ?"
    cursor.execute(f"DELETE FROM tombstone WHERE (name, token) IN ({ended})", (now_us, _FORGET_AT_ONCE))  # noqa: S608


def _forget_at_us(cursor: sqlite3.Cursor, name: str, body: bytes) -> int:
    try:
        return min(forget_at_us(*unpacked(cursor, name, body.decode())), _NEVER_US)
    except DAMAGE as error:
        raise_if_of_signal(error)
        return _NEVER_US  # the holder is unknown, so the name must not become free after some time


def _store_waiters(cursor: sqlite3.Cursor, name: str, waiters: Line) -> None:
    if isinstance(waiters, StoredWaitingLine):
        waiters.write()
        return
    for waiter in waiters:  # the line was empty before
        join(cursor, name, waiter)


def _store_tombstones(cursor: sqlite3.Cursor, name: str, tombstones: Tombstones) -> None:
    if isinstance(tombstones, StoredTombstones):
        tombstones.write()
    elif isinstance(tombstones, MemoryTombstones):
        for tombstone in tombstones:  # there were none before, or all of them had ended
            add_tombstone(cursor, name, tombstone)


def _packed_clients(clients: Mapping[str, int]) -> str:
    return ",".join(f"{client}:{count}" for client, count in clients.items())


def _clients(text: str) -> dict[str, int]:
    counts = (entry.split(":") for entry in text.split(","))
    return {client: int(count) for client, count in counts}


def unreadable(name: str, error: Exception) -> UnreadableRecord:
    """Return the error for a name whose stored state cannot be read."""
    raise_if_of_signal(error)
    return UnreadableRecord("sqlite", detail=f"the record of {name!r} cannot be read: {error}")
