"""Records as rows: how the law's record is loaded and how its changes are stored.

Waiters and tombs have tables of their own, and a lease's row counts them: the uncontended path reads and writes one
row. Only differences are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.rules.lease import Holder, Record, Tomb, Waiter, forget_at_us

if TYPE_CHECKING:
    import sqlite3

LAYOUT = 1

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE session (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- also the byte of the live file that the process keeps locked
    live INTEGER NOT NULL,                 -- which live file: a byte of another file proves nothing
    pid INTEGER NOT NULL,
    marked_us INTEGER NOT NULL             -- the last sign of life, for waiters
);
CREATE TABLE lease (
    name TEXT PRIMARY KEY,
    forget_us INTEGER NOT NULL,            -- rounded up, so that a busy name seldom moves in the index
    body TEXT NOT NULL                     -- see packed()
) WITHOUT ROWID;
CREATE INDEX lease_forget ON lease (forget_us);
CREATE TABLE waiter (
    ticket INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    token TEXT NOT NULL,
    session TEXT NOT NULL,
    owner TEXT NOT NULL,
    ttl_ms INTEGER NOT NULL,
    since_us INTEGER NOT NULL
);
CREATE INDEX waiter_queue ON waiter (name, ticket);
CREATE TABLE tomb (
    name TEXT NOT NULL,
    token TEXT NOT NULL,
    until_us INTEGER NOT NULL,
    why TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (name, token)
) WITHOUT ROWID;
"""

_FORGET_STEP_US = 10_000_000
# More than can be new since the last time, so that names which are used once do not pile up.
_FORGET_AT_ONCE = 200


class Row(NamedTuple):
    """A record as it was loaded, and when its name is to be forgotten; `None` if there was no row."""

    record: Record
    forget_us: int | None


def packed(record: Record) -> str:
    """One line per value: fence, last, touched, waiters, tombs; then the holder, its owner last.

    One column is bound and read faster than a dozen.
    """
    head = f"{record.fence}\n{record.last}\n{record.touched_us}\n{len(record.waiters)}\n{len(record.tombs)}\n"
    held = record.holder
    if held is None:
        return head
    times = f"{held.ttl_ms}\n{held.since_us}\n{held.expires_us}\n{held.offered:d}"
    return f"{head}{held.token}\n{held.client}\n{held.fence}\n{times}\n{held.owner}"


def load(connection: sqlite3.Connection, name: str) -> Row:
    """The record of a name; an empty one if nothing is known."""
    row = connection.execute("SELECT forget_us, body FROM lease WHERE name = ?", (name,)).fetchone()
    if row is None:
        return Row(Record(), None)

    fence, last, touched_us, waiting, buried, *seat = row[1].split("\n", 12)
    holder = None
    if seat[0]:
        token, client, held, ttl_ms, since_us, expires_us, offered, owner = seat
        times = (int(ttl_ms), int(since_us), int(expires_us))
        holder = Holder(token, client, owner, int(held), *times, offered=offered == "1")
    waiters: tuple[Waiter, ...] = ()
    if waiting != "0":
        ask = "SELECT token, session, owner, ttl_ms, since_us FROM waiter WHERE name = ? ORDER BY ticket"
        waiters = tuple(Waiter(*fields) for fields in connection.execute(ask, (name,)))
    tombs: tuple[Tomb, ...] = ()
    if buried != "0":
        ask = "SELECT token, until_us, why, detail FROM tomb WHERE name = ?"
        tombs = tuple(Tomb(*fields) for fields in connection.execute(ask, (name,)))
    return Row(Record(int(fence), holder, waiters, tombs, last, int(touched_us)), row[0])


def store(connection: sqlite3.Connection, name: str, row: Row, after: Record, memory_us: int) -> None:
    """Write what the rule changed; the index only if the name moves in it."""
    before = row.record
    if after.waiters is not before.waiters:
        _store_waiters(connection, name, before, after)
    if after.tombs is not before.tombs:
        _store_tombs(connection, name, before, after)
    forget_us = -(-forget_at_us(after, memory_us) // _FORGET_STEP_US) * _FORGET_STEP_US
    if row.forget_us == forget_us:
        connection.execute("UPDATE lease SET body = ? WHERE name = ?", (packed(after), name))
    else:
        connection.execute("INSERT OR REPLACE INTO lease VALUES (?, ?, ?)", (name, forget_us, packed(after)))


def keep_fences_only(connection: sqlite3.Connection, now_us: int, memory_us: int) -> None:
    """End every lease, waiter and tomb; the fences stay."""
    for (name,) in connection.execute("SELECT name FROM lease").fetchall():
        row = load(connection, name)
        record = Record(fence=row.record.fence, touched_us=now_us)
        store(connection, name, row, record, memory_us)


def forget(connection: sqlite3.Connection, now_us: int) -> None:
    """Drop a few names whose memory ended, so that no command pays for many."""
    ask = "SELECT name FROM lease WHERE forget_us <= ? LIMIT ?"
    for (name,) in connection.execute(ask, (now_us, _FORGET_AT_ONCE)).fetchall():
        connection.execute("DELETE FROM lease WHERE name = ?", (name,))
        connection.execute("DELETE FROM waiter WHERE name = ?", (name,))
        connection.execute("DELETE FROM tomb WHERE name = ?", (name,))


def _store_waiters(connection: sqlite3.Connection, name: str, before: Record, after: Record) -> None:
    known = {waiter.token for waiter in before.waiters}
    kept = {waiter.token for waiter in after.waiters}
    for waiter in before.waiters:
        if waiter.token not in kept:
            connection.execute("DELETE FROM waiter WHERE name = ? AND token = ?", (name, waiter.token))
    for waiter in after.waiters:
        if waiter.token not in known:
            connection.execute(
                "INSERT INTO waiter (name, token, session, owner, ttl_ms, since_us) VALUES (?, ?, ?, ?, ?, ?)",
                (name, waiter.token, waiter.client, waiter.owner, waiter.ttl_ms, waiter.since_us),
            )


def _store_tombs(connection: sqlite3.Connection, name: str, before: Record, after: Record) -> None:
    for tomb in before.tombs:
        if tomb not in after.tombs:
            connection.execute("DELETE FROM tomb WHERE name = ? AND token = ?", (name, tomb.token))
    for tomb in after.tombs:
        if tomb not in before.tombs:
            fields = (name, tomb.token, tomb.until_us, tomb.why, tomb.detail)
            connection.execute("INSERT OR REPLACE INTO tomb VALUES (?, ?, ?, ?, ?)", fields)
