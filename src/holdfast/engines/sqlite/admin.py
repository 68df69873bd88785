"""Read-only views of a SQLite file for people and tools: its names, and the leftovers of dead processes."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

from holdfast.commands.queue_admin import QUEUES
from holdfast.engines.admin import EngineReport, Fact, Finding, NamePage
from holdfast.engines.sqlite import lease_rows, location
from holdfast.engines.sqlite.process_locks import is_alive
from holdfast.interrupts import raise_if_of_signal
from holdfast.names import readable
from holdfast.rules.counters import unpacked

if TYPE_CHECKING:
    from holdfast.engines.sqlite.database import Database


_AT_ONCE = 1000
_ROWS = 10_000
# The tables of names by kind, except those of pools.
_TABLES = {"": "lease WHERE ? = ''", QUEUES: f"queue WHERE ? = '{QUEUES}'"}


def names(database: Database, prefix: str, limit: int, kind: str = "") -> NamePage:
    """Return names of the file in order, without the keys of registries.

    Each transaction reads a page, so that other clients can pass the gate between two pages.
    """
    found: list[str] = []
    table = _TABLES.get(kind, "pool WHERE kind = ?")
    select = f"SELECT name FROM {table} AND name >= ? ORDER BY name LIMIT ?"  # noqa: S608 - all texts stand here

    def page(cursor: sqlite3.Cursor) -> list[str]:
        return [row[0] for row in cursor.execute(select, (kind, start, _AT_ONCE))]

    start = prefix
    while len(found) <= limit:
        some = database.transact(page)
        found += [name for name in some if name.startswith(prefix) and "\0" not in name]
        if len(some) < _AT_ONCE or not some[-1].startswith(prefix):
            break
        start = f"{some[-1]}\0"  # the smallest text after that name
    return NamePage(tuple(found[:limit]), more=len(found) > limit)


def _unreadable(cursor: sqlite3.Cursor) -> list[str]:
    """Return what is wrong with rows that no list of names has: entries of registries, and counters."""
    found = []
    for name, body in cursor.execute("SELECT name, CAST(body AS BLOB) FROM lease LIMIT ?", (_ROWS,)).fetchall():
        try:
            if "\0" in name:
                lease_rows.unpacked(cursor, name, body.decode())
        except lease_rows.DAMAGE as error:
            raise_if_of_signal(error)
            found.append(f"the record of {readable(name)!r} cannot be read: {error}")
    select = "SELECT kind, name, CAST(body AS BLOB) FROM counter LIMIT ?"
    for kind, name, body in cursor.execute(select, (_ROWS,)).fetchall():
        try:
            unpacked(kind, json.loads(body))
        except lease_rows.DAMAGE as error:
            raise_if_of_signal(error)
            found.append(f"the counter {name!r} cannot be read: {error}")
    return found


def examine(database: Database) -> EngineReport:
    """Return the facts about the file, its filesystem, and what dead processes left."""

    def look(cursor: sqlite3.Cursor) -> tuple[list[tuple[int, int, int]], int, str, list[str]]:
        sessions = cursor.execute("SELECT id, live, pid FROM session").fetchall()
        leases = cursor.execute("SELECT count(*) FROM lease").fetchone()[0]
        check = cursor.execute("PRAGMA quick_check(1)").fetchone()[0]
        return sessions, leases, check, [] if check != "ok" else _unreadable(cursor)

    sessions, leases, check, damaged = database.transact(look)
    live = database.live
    dead = {session for session, inode, pid in sessions if inode == live.inode and not is_alive(live, session, pid)}
    known = {session for session, _, _ in sessions} - dead
    pipes = sorted(database.path.parent.glob(f"{database.path.name}.wake.*"))
    orphans = [pipe for pipe in pipes if pipe.suffix[1:].isdigit() and int(pipe.suffix[1:]) not in known]
    version, file = f"SQLite {sqlite3.sqlite_version}", str(database.path)
    disk = location.filesystem(database.path.parent) or None
    left = f"{len(dead)} sessions, {len(orphans)} pipes (cleared by the next client)"
    facts = (
        Fact("version", version, {"engine": version}),
        Fact("file", file, {"file": file}),
        Fact("filesystem", disk or "unknown", {"filesystem": disk}),
        Fact("names remembered", str(leases), {"names": leases}),
        Fact("clients", str(len(known)), {"clients": len(known)}),
        Fact("left by dead clients", left, {"dead_sessions": len(dead), "dead_pipes": len(orphans)}),
        Fact("clock", "this host's own, counted from boot: nothing to drift from", {"clock": "this host"}),
    )
    if check == "ok":
        advice = "no other name is affected; the row stays until you delete it"
        return EngineReport(facts, tuple(Finding(serious=False, what=what, advice=advice) for what in damaged))
    advice = f"stop every user of {database.path} and move it away with its -wal and -shm files"
    return EngineReport(facts, (Finding(serious=True, what=f"the file is damaged: {check}", advice=advice),))
