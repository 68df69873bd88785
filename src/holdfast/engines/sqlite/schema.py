"""The tables of the file, the version of their layout, and the boot of the machine that their times belong to.

The engine refuses a file of another layout, older or newer, and changes nothing in it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING
from urllib.parse import quote

from holdfast.clock import NS_PER_US, SYSTEM
from holdfast.engines.sqlite import lease_rows, location, pool, queue_tables
from holdfast.errors import Unavailable, UnavailableReason

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT = 5
_FENCE_MEMORY_US = 60_000_000

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE session (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- also the byte of the live file that the process keeps locked
    live INTEGER NOT NULL,                 -- inode of the live file: a byte of another file proves nothing
    pid INTEGER NOT NULL
);
CREATE TABLE lease (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    look_us INTEGER NOT NULL,              -- when to look whether it can be forgotten; may be too early
    body TEXT NOT NULL                     -- see lease_rows.packed()
);
CREATE INDEX lease_look ON lease (look_us);
CREATE TABLE waiter (
    ticket INTEGER PRIMARY KEY,            -- the order in which they came
    name TEXT NOT NULL,
    token TEXT NOT NULL,
    session TEXT NOT NULL,
    holder TEXT NOT NULL,
    ttl_ms INTEGER NOT NULL,
    since_us INTEGER NOT NULL
);
CREATE INDEX waiter_order ON waiter (name, ticket);
CREATE UNIQUE INDEX waiter_token ON waiter (name, token);
CREATE TABLE tombstone (
    name TEXT NOT NULL,
    token TEXT NOT NULL,
    until_us INTEGER NOT NULL,
    why TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (name, token)
) WITHOUT ROWID;
CREATE INDEX tombstone_until ON tombstone (until_us);
CREATE TABLE counter (
    kind TEXT NOT NULL,                    -- what is counted, and how
    name TEXT NOT NULL,
    until_us INTEGER NOT NULL,             -- on the calendar: a counter outlives a restart of the machine
    body TEXT NOT NULL,                    -- JSON
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE INDEX counter_until ON counter (until_us);
CREATE TABLE registry_index (
    registry TEXT NOT NULL,
    index_name TEXT NOT NULL,
    entry TEXT NOT NULL,
    token TEXT NOT NULL,                   -- of the lease that added the entry; ignored once that lease ended
    until_us INTEGER NOT NULL,             -- on the calendar
    PRIMARY KEY (registry, index_name, entry)
) WITHOUT ROWID;
CREATE INDEX registry_index_until ON registry_index (until_us);
CREATE TABLE mailbox_message (
    id INTEGER PRIMARY KEY,                -- the order in which they came
    token TEXT NOT NULL,                   -- of the owner whose mailbox it is
    message_id TEXT NOT NULL,
    text TEXT NOT NULL,
    until_us INTEGER NOT NULL              -- on the calendar
);
CREATE INDEX mailbox_message_token ON mailbox_message (token, id);
CREATE INDEX mailbox_message_until ON mailbox_message (until_us);
"""


def refuse_other_layout(path: Path) -> None:
    """Raise `Unavailable` if the file has another layout, before the engine writes to the file or beside it.

    SQLite opens the file as immutable, so it creates no files and ignores the write-ahead log. If only the log has the
    layout, `prepare` finds it.
    """
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error:
        return  # there is no file yet, or the normal open reports what is wrong with it
    with contextlib.closing(connection), contextlib.suppress(sqlite3.Error):  # a new or damaged file has no such table
        _refuse(path, connection.execute("SELECT value FROM meta WHERE key = 'layout'").fetchone())


def _refuse(path: Path, found: tuple[str] | None) -> None:
    layout = found[0] if found is not None else "unknown"
    if layout != str(LAYOUT):
        detail = (
            f"{path} has layout {layout}, and this version of holdfast uses layout {LAYOUT}: stop every process that "
            "uses the file and move it away with its -wal and -shm files, or install the version that wrote it"
        )
        raise Unavailable("sqlite", UnavailableReason.OTHER_LAYOUT, detail)


def prepare(cursor: sqlite3.Cursor, path: Path) -> None:
    """Create the tables, or check their layout."""
    cursor.execute("BEGIN IMMEDIATE")
    if not cursor.execute("SELECT count(*) FROM sqlite_master WHERE name = 'meta'").fetchone()[0]:
        _create(cursor, _SCHEMA + pool.SCHEMA + queue_tables.SCHEMA)
        cursor.execute("INSERT INTO meta VALUES ('layout', ?)", (str(LAYOUT),))
    _refuse(path, cursor.execute("SELECT value FROM meta WHERE key = 'layout'").fetchone())
    cursor.execute("COMMIT")


def use_clock(cursor: sqlite3.Cursor, path: Path) -> None:
    """Make the clock of this process that of the file, and end everything that was timed by another one.

    A process of another time namespace reads another clock under the same boot: while one of its sessions lives, raise
    `Unavailable`. The caller has removed the sessions that are proven dead.
    """
    clock = location.boot_id()
    found = cursor.execute("SELECT value FROM meta WHERE key = 'boot'").fetchone()
    if found == (clock,):
        return
    if found is not None:
        session = cursor.execute("SELECT pid FROM session LIMIT 1").fetchone()
        if session and location.is_same_boot(found[0], clock):
            detail = (
                f"process {session[0]} uses {path} with the clock {found[0]}, and the clock here is {clock}: run both "
                "in the same time namespace, or let them use different files"
            )
            raise Unavailable("sqlite", UnavailableReason.OTHER_CLOCK, detail)
        # Times of another clock mean nothing, and its processes are gone. The fences stay.
        now_us = SYSTEM.now_ns() // NS_PER_US
        lease_rows.keep_fences_only(cursor, now_us, _FENCE_MEMORY_US)
        cursor.execute("DELETE FROM session")
        pool.end_previous_boot(cursor, now_us)
        queue_tables.end_previous_boot(cursor)
    cursor.execute("INSERT OR REPLACE INTO meta VALUES ('boot', ?)", (clock,))


def _create(cursor: sqlite3.Cursor, schema: str) -> None:
    for statement in schema.split(";\n"):
        if statement.strip():
            cursor.execute(statement)
