"""Records as rows: how the law's record is loaded and how its changes are stored.

Waiters and tombs have tables of their own, and a lease's row counts them: the uncontended path reads and writes one
row. Only differences are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    fence INTEGER NOT NULL,
    last TEXT NOT NULL,
    touched_us INTEGER NOT NULL,
    forget_us INTEGER NOT NULL,            -- rounded up, so that a busy name seldom moves in the index
    waiting INTEGER NOT NULL,
    buried INTEGER NOT NULL,
    token TEXT,
    session TEXT,
    owner TEXT,
    held_fence INTEGER,
    ttl_ms INTEGER,
    since_us INTEGER,
    expires_us INTEGER,
    offered INTEGER
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

_LOAD = """
SELECT fence, last, touched_us, waiting, buried, token, session, owner, held_fence, ttl_ms, since_us, expires_us,
       offered
FROM lease WHERE name = ?
"""
_STORE = """
INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    fence = excluded.fence, last = excluded.last, touched_us = excluded.touched_us, forget_us = excluded.forget_us,
    waiting = excluded.waiting, buried = excluded.buried, token = excluded.token, session = excluded.session,
    owner = excluded.owner, held_fence = excluded.held_fence, ttl_ms = excluded.ttl_ms, since_us = excluded.since_us,
    expires_us = excluded.expires_us, offered = excluded.offered
"""
_FORGET_STEP_US = 10_000_000
# More than can be new since the last time, so that names which are used once do not pile up.
_FORGET_AT_ONCE = 200


def load(connection: sqlite3.Connection, name: str) -> Record:
    """The record of a name; an empty one if nothing is known."""
    row = connection.execute(_LOAD, (name,)).fetchone()
    if row is None:
        return Record()

    (
        fence,
        last,
        touched_us,
        waiting,
        buried,
        token,
        session,
        owner,
        held_fence,
        ttl_ms,
        since_us,
        expires_us,
        offered,
    ) = row
    holder = (
        None
        if token is None
        else Holder(token, session, owner, held_fence, ttl_ms, since_us, expires_us, bool(offered))
    )
    waiters: tuple[Waiter, ...] = ()
    if waiting:
        ask = "SELECT token, session, owner, ttl_ms, since_us FROM waiter WHERE name = ? ORDER BY ticket"
        waiters = tuple(Waiter(*fields) for fields in connection.execute(ask, (name,)))
    tombs: tuple[Tomb, ...] = ()
    if buried:
        ask = "SELECT token, until_us, why, detail FROM tomb WHERE name = ?"
        tombs = tuple(Tomb(*fields) for fields in connection.execute(ask, (name,)))
    return Record(fence, holder, waiters, tombs, last, touched_us)


def store(connection: sqlite3.Connection, name: str, before: Record, after: Record, memory_us: int) -> None:
    """Write what the rule changed."""
    if after.waiters is not before.waiters:
        _store_waiters(connection, name, before, after)
    if after.tombs is not before.tombs:
        _store_tombs(connection, name, before, after)
    forget_us = -(-forget_at_us(after, memory_us) // _FORGET_STEP_US) * _FORGET_STEP_US
    shared = (
        name,
        after.fence,
        after.last,
        after.touched_us,
        forget_us,
        len(after.waiters),
        len(after.tombs),
    )
    held = after.holder
    seat = (
        (None,) * 8
        if held is None
        else (
            held.token,
            held.client,
            held.owner,
            held.fence,
            held.ttl_ms,
            held.since_us,
            held.expires_us,
            held.offered,
        )
    )
    connection.execute(_STORE, shared + seat)


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
