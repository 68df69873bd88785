"""Records as rows: how the law's record is loaded and how its changes are stored.

One row says all about a name that nobody waits for: a quiet command reads and writes that row and nothing else. Waiters
and tombs have tables of their own; the row tells whose waiters there are and when the last tomb crumbles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.commands import Acquire, Renew, WaiterHeartbeat
from holdfast.engines.sqlite.waiting_line import StoredLine, StoredTombstones, bury, join
from holdfast.errors import Unavailable
from holdfast.rules import forget_at_us
from holdfast.rules.lease_record import (
    NO_TOMBSTONES,
    NO_WAITERS,
    HolderRecord,
    Line,
    MemoryTombstones,
    Record,
    Tombstones,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from holdfast.commands import Command

_NEVER_US = 2**62
_INSERT = "INSERT INTO record (name, look_us, body) VALUES (?, ?, ?)"
# More than can be new since the last time, so that names which are used once do not pile up.
_FORGET_AT_ONCE = 200


class Row(NamedTuple):
    """A record and the text it is stored as; empty if there is no row."""

    record: Record
    body: str

    def quiet(self, client: str) -> bool:
        """Nobody else has anything to do with it: no waiter, no tomb, no offer, no other holder."""
        record, holder = self.record, self.record.holder
        mine = holder is None or (holder.client == client and not holder.offered)
        return mine and not record.waiters.clients and not record.tombstones.ends_us


def packed(record: Record, memory_us: int) -> str:
    """One line per value: fence, last, touched, memory, tombs, waiters; then the holder, its owner last.

    One column is bound and read faster than a dozen.
    """
    head = f"{record.fence}\n{record.last}\n{record.touched_us}\n{memory_us}\n{record.tombstones.ends_us}\n"
    clients = record.waiters.clients
    line = _line(clients) if clients else ""
    held = record.holder
    if held is None:
        return f"{head}{line}\n"
    times = f"{held.ttl_ms}\n{held.since_us}\n{held.expires_us}\n{held.offered:d}"
    return f"{head}{line}\n{held.token}\n{held.client}\n{held.fence}\n{times}\n{held.holder}"


def unpacked(link: sqlite3.Cursor, name: str, body: str) -> tuple[Record, int]:
    """The record, and for how long its last user wants it remembered."""
    fence, last, touched_us, memory_us, ends_us, line, *seat = body.split("\n", 13)
    holder = None
    if not seat:
        raise ValueError("it ends too early")
    if seat[0]:
        token, client, held, ttl_ms, since_us, expires_us, offered, process = seat
        times = (_number(ttl_ms), _number(since_us), _number(expires_us))
        holder = HolderRecord(token, client, process, _number(held), *times, offered == "1")
    waiters: Line = StoredLine(link, name, _clients(line)) if line else NO_WAITERS
    tombstones: Tombstones = StoredTombstones(link, name, _number(ends_us)) if ends_us != "0" else NO_TOMBSTONES
    return Record(_number(fence), holder, waiters, tombstones, last, _number(touched_us)), _number(memory_us)


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number <= _NEVER_US:
        raise ValueError(f"it has the number {text}")
    return number


def load(link: sqlite3.Cursor, name: str) -> Row:
    """The record of a name; an empty one if nothing is known."""
    found = link.execute("SELECT body FROM record WHERE name = ?", (name,)).fetchone()
    return Row(Record(), "") if found is None else Row(unpacked(link, name, found[0])[0], found[0])


def store(link: sqlite3.Cursor, name: str, row: Row, after: Record, memory_us: int) -> Row:
    """Write what the rule changed. When to look for a name to forget is set once, and moved when it is looked at."""
    before = row.record
    if after.waiters is not before.waiters:
        _store_waiters(link, name, after.waiters)
    if after.tombstones is not before.tombstones:
        _store_tombstones(link, name, after.tombstones)
    body = packed(after, memory_us)
    if row.body:
        link.execute("UPDATE record SET body = ? WHERE name = ?", (body, name))
    else:
        link.execute(_INSERT, (name, forget_at_us(after, memory_us), body))
    return Row(after, body)


def exchange(link: sqlite3.Cursor, name: str, row: Row, after: Record, memory_us: int) -> Row | None:
    """Write a quiet record if it is still stored as it was; one statement, which is its own transaction."""
    body = packed(after, memory_us)
    link.execute("UPDATE record SET body = ? WHERE name = ? AND body = ?", (body, name, row.body))
    return Row(after, body) if link.rowcount else None


def keep_fences_only(link: sqlite3.Cursor, now_us: int, memory_us: int) -> None:
    """End every lease, waiter and tomb; the fences stay."""
    known = link.execute("SELECT name, body FROM record").fetchall()
    for table in ("record", "waiter", "tomb"):
        link.execute(f"DELETE FROM {table}")  # noqa: S608
    for name, body in known:
        keep_fence(link, name, int(body.partition("\n")[0]), now_us, memory_us)


def keep_fence(link: sqlite3.Cursor, name: str, fence: int, now_us: int, memory_us: int) -> None:
    """A name of which nothing but the fence is still true."""
    record = Record(fence=fence, touched_us=now_us)
    link.execute(_INSERT, (name, forget_at_us(record, memory_us), packed(record, memory_us)))


def forget(link: sqlite3.Cursor, now_us: int) -> None:
    """Drop a few names whose memory ended and a few crumbled tombs, so that no command pays for many.

    A damaged record is nobody's business but its own name's: it is passed over, whatever stands in it.
    """
    ask = "SELECT name, CAST(body AS BLOB) FROM record WHERE look_us <= ? LIMIT ?"
    for name, body in link.execute(ask, (now_us, _FORGET_AT_ONCE)).fetchall():
        look_us = _forget_at_us(link, name, body)
        if look_us > now_us:
            link.execute("UPDATE record SET look_us = ? WHERE name = ?", (look_us, name))
        else:
            link.execute("DELETE FROM record WHERE name = ?", (name,))
            link.execute("DELETE FROM waiter WHERE name = ?", (name,))
    crumbled = "SELECT name, token FROM tomb WHERE until_us <= ? LIMIT ?"
    link.execute(f"DELETE FROM tomb WHERE (name, token) IN ({crumbled})", (now_us, _FORGET_AT_ONCE))  # noqa: S608


def _forget_at_us(link: sqlite3.Cursor, name: str, body: bytes) -> int:
    try:
        return min(forget_at_us(*unpacked(link, name, body.decode())), _NEVER_US)
    except (ValueError, TypeError, LookupError, AttributeError):
        return _NEVER_US  # who holds it cannot be known, so nobody gets it by and by


def _store_waiters(link: sqlite3.Cursor, name: str, line: Line) -> None:
    if isinstance(line, StoredLine):
        line.write()
        return
    for waiter in line:  # nobody waited before
        join(link, name, waiter)


def _store_tombstones(link: sqlite3.Cursor, name: str, tombstones: Tombstones) -> None:
    if isinstance(tombstones, StoredTombstones):
        tombstones.write()
    elif isinstance(tombstones, MemoryTombstones):
        for tombstone in tombstones:  # there were none before, or all of them have crumbled
            bury(link, name, tombstone)


def _line(clients: Mapping[str, int]) -> str:
    return ",".join(f"{client}:{count}" for client, count in clients.items())


def _clients(line: str) -> dict[str, int]:
    counts = (entry.split(":") for entry in line.split(","))
    return {client: int(count) for client, count in counts}


def leaves_all_as_it_is(command: Command, holder: HolderRecord | None) -> bool:
    """Whether the line is the same after this command, as long as the holder stays what it is."""
    if type(command) is Acquire:
        return holder is not None and command.token == holder.token
    return type(command) in (Renew, WaiterHeartbeat)


def unreadable(name: str, error: Exception) -> Unavailable:
    """What to tell whoever asks for a name whose row makes no sense."""
    return Unavailable("sqlite", "corrupt", f"the record of {name!r} cannot be read: {error}")
