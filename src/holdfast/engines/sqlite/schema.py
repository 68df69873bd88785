"""What is in the file: its tables, the version of them, and the boot of the machine that their times belong to.

A file of a newer layout is refused. One of an older layout is brought up to date, unless a process of the older version
may still use it: then nothing is touched, and the process is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import NS_PER_US, SYSTEM
from holdfast.engines.sqlite import lease_rows as rows
from holdfast.engines.sqlite import location as place
from holdfast.engines.sqlite import pool, queue_tables
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    import sqlite3

    from holdfast.engines.sqlite.process_locks import LockFile

LAYOUT = 3
_FENCE_MEMORY_US = 60_000_000

_COMMON = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE session (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- also the byte of the live file that the process keeps locked
    live INTEGER NOT NULL,                 -- which live file: a byte of another file proves nothing
    pid INTEGER NOT NULL,
    marked_us INTEGER NOT NULL             -- the last sign of life, for waiters
);
"""
_RECORDS = """
CREATE TABLE record (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    look_us INTEGER NOT NULL,              -- when to look whether it can be forgotten; may be too early
    body TEXT NOT NULL                     -- see rows.packed()
);
CREATE INDEX record_look ON record (look_us);
CREATE TABLE waiter (
    ticket INTEGER PRIMARY KEY,            -- the order in which they came
    name TEXT NOT NULL,
    token TEXT NOT NULL,
    session TEXT NOT NULL,
    owner TEXT NOT NULL,
    ttl_ms INTEGER NOT NULL,
    since_us INTEGER NOT NULL
);
CREATE INDEX waiter_queue ON waiter (name, ticket);
CREATE UNIQUE INDEX waiter_token ON waiter (name, token);
CREATE TABLE tomb (
    name TEXT NOT NULL,
    token TEXT NOT NULL,
    until_us INTEGER NOT NULL,
    why TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (name, token)
) WITHOUT ROWID;
CREATE INDEX tomb_until ON tomb (until_us);
"""
# What a version adds beside all that was there harms nobody who does not know of it, so it needs no layout of its own.
_ADDED = """
CREATE TABLE IF NOT EXISTS tally (
    shelf TEXT NOT NULL,                   -- what is counted, and how
    name TEXT NOT NULL,
    until_us INTEGER NOT NULL,             -- by the calendar: it is kept over a restart of the machine
    body TEXT NOT NULL,                    -- JSON
    PRIMARY KEY (shelf, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tally_until ON tally (until_us);
CREATE TABLE IF NOT EXISTS shelf (
    directory TEXT NOT NULL,
    shelf TEXT NOT NULL,
    entry TEXT NOT NULL,
    token TEXT NOT NULL,                   -- who put it there; what it does not hold any more is passed over
    until_us INTEGER NOT NULL,             -- by the calendar
    PRIMARY KEY (directory, shelf, entry)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS shelf_until ON shelf (until_us);
CREATE TABLE IF NOT EXISTS letter (
    id INTEGER PRIMARY KEY,                -- the order in which they came
    token TEXT NOT NULL,                   -- whose box
    letter TEXT NOT NULL,
    text TEXT NOT NULL,
    until_us INTEGER NOT NULL              -- by the calendar
);
CREATE INDEX IF NOT EXISTS letter_box ON letter (token, id);
CREATE INDEX IF NOT EXISTS letter_until ON letter (until_us);
"""


def prepare(link: sqlite3.Cursor, live: LockFile) -> None:
    """Make the tables, or check that they are ours; void what another boot of the machine left behind."""
    link.execute("BEGIN IMMEDIATE")
    if not link.execute("SELECT count(*) FROM sqlite_master WHERE name = 'meta'").fetchone()[0]:
        _create(link, _COMMON + _RECORDS)
        link.execute("INSERT INTO meta VALUES ('layout', ?)", (str(LAYOUT),))
        link.execute("INSERT INTO meta VALUES ('boot', ?)", (place.boot_id(),))
    found = dict(link.execute("SELECT key, value FROM meta"))
    if found.get("layout") in _STEPS:
        _bring_up_to_date(link, live, found)
    elif found.get("layout") != str(LAYOUT):
        raise Unavailable("sqlite", "other layout", f"layout {found.get('layout')} is not {LAYOUT}: upgrade holdfast")
    _create(link, _ADDED)
    if found.get("boot") != place.boot_id():
        # Times of another boot mean nothing, and its processes are gone. The fences stay.
        rows.keep_fences_only(link, SYSTEM.now_ns() // NS_PER_US, _FENCE_MEMORY_US)
        link.execute("DELETE FROM session")
        link.execute("UPDATE meta SET value = ? WHERE key = 'boot'", (place.boot_id(),))
    _prepare_pools(link, found.get("pools"))
    _prepare_queues(link, found.get("queues"))
    link.execute("COMMIT")


def _prepare_pools(link: sqlite3.Cursor, boot: str | None) -> None:
    """Pools have tables that a version without pools never looks at; so they know for themselves which boot it is."""
    if boot is None:
        _create(link, pool.SCHEMA)
        link.execute("INSERT INTO meta VALUES ('pools', ?)", (place.boot_id(),))
    elif boot != place.boot_id():
        pool.begin_anew(link, SYSTEM.now_ns() // NS_PER_US)
        link.execute("UPDATE meta SET value = ? WHERE key = 'pools'", (place.boot_id(),))


def _prepare_queues(link: sqlite3.Cursor, boot: str | None) -> None:
    """The same for queues."""
    if boot is None:
        _create(link, queue_tables.SCHEMA)
        link.execute("INSERT INTO meta VALUES ('queues', ?)", (place.boot_id(),))
    elif boot != place.boot_id():
        queue_tables.begin_anew(link)
        link.execute("UPDATE meta SET value = ? WHERE key = 'queues'", (place.boot_id(),))


def _bring_up_to_date(link: sqlite3.Cursor, live: LockFile, found: dict[str, str]) -> None:
    """Step by step, once its users are proven dead."""
    if found.get("boot") == place.boot_id():
        _refuse_if_in_use(link, live, found["layout"])
    for layout in range(int(found["layout"]), LAYOUT):
        _STEPS[str(layout)](link, found)
    link.execute("UPDATE meta SET value = ? WHERE key = 'layout'", (str(LAYOUT),))


def _from_layout_1(link: sqlite3.Cursor, found: dict[str, str]) -> None:  # noqa: ARG001 - as all steps
    """It had its leases in another table, and only their fences count now."""
    old = link.execute("SELECT name, body FROM lease").fetchall()
    for table in ("lease", "waiter", "tomb"):
        link.execute(f"DROP TABLE {table}")
    _create(link, _RECORDS)
    now_us = SYSTEM.now_ns() // NS_PER_US
    for name, body in old:
        rows.keep_fence(link, name, int(body.partition("\n")[0]), now_us, _FENCE_MEMORY_US)
    link.execute("DELETE FROM session")


def _from_layout_2(link: sqlite3.Cursor, found: dict[str, str]) -> None:
    """Its messages had no order of keys, and no fences of their own."""
    if "queues" in found:
        _create(link, queue_tables.UP_TO_DATE)


_STEPS = {"1": _from_layout_1, "2": _from_layout_2}


def _refuse_if_in_use(link: sqlite3.Cursor, live: LockFile, layout: str) -> None:
    for session, inode, pid in link.execute("SELECT id, live, pid FROM session").fetchall():
        if inode != live.inode or live.holder(session) is not None:
            what = f"layout {layout} is in use by process {pid}: end what uses the older version first"
            raise Unavailable("sqlite", "other layout", what)


def _create(link: sqlite3.Cursor, schema: str) -> None:
    for statement in schema.split(";\n"):
        if statement.strip():
            link.execute(statement)
