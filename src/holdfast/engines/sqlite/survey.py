"""What people may ask of a SQLite file: the names in it, and whether anything was left behind beside it."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from holdfast.engines.sqlite import lifeline, place
from holdfast.engines.survey import Examination, Finding, Names

if TYPE_CHECKING:
    from holdfast.engines.sqlite.database import Database


def names(database: Database, prefix: str, limit: int, roof: str = "") -> Names:
    """Names in the file; one transaction, one look at the index."""

    def look(link: sqlite3.Cursor) -> list[str]:
        kept = "pool WHERE roof = ? AND" if roof else "record WHERE ? = '' AND"
        ask = f"SELECT name FROM {kept} name >= ? AND substr(name, 1, ?) = ? ORDER BY name LIMIT ?"  # noqa: S608
        return [row[0] for row in link.execute(ask, (roof, prefix, len(prefix), prefix, limit + 1))]

    found = database.transact(look)
    return Names(tuple(found[:limit]), more=len(found) > limit)


def examine(database: Database) -> Examination:
    """The file, its place, and what dead processes left."""

    def look(link: sqlite3.Cursor) -> tuple[list[tuple[int, int]], int, str]:
        sessions = link.execute("SELECT id, live FROM session").fetchall()
        leases = link.execute("SELECT count(*) FROM record").fetchone()[0]
        return sessions, leases, link.execute("PRAGMA quick_check(1)").fetchone()[0]

    sessions, leases, whole = database.transact(look)
    live = database.live
    dead = {
        session
        for session, inode in sessions
        if inode == live.inode and live.holder(session) is None and not lifeline.is_held(live, session)
    }
    known = {session for session, _ in sessions} - dead
    pipes = sorted(database.path.parent.glob(f"{database.path.name}.wake.*"))
    orphans = [pipe for pipe in pipes if pipe.suffix[1:].isdigit() and int(pipe.suffix[1:]) not in known]
    facts = (
        ("version", f"SQLite {sqlite3.sqlite_version}"),
        ("file", str(database.path)),
        ("filesystem", place.filesystem(database.path.parent) or "unknown"),
        ("names remembered", str(leases)),
        ("clients", str(len(known))),
        ("left by dead clients", f"{len(dead)} sessions, {len(orphans)} pipes (cleared by the next client)"),
        ("clock", "this host's own, counted from boot: nothing to drift from"),
    )
    if whole == "ok":
        return Examination(facts)
    advice = f"stop every user of {database.path} and move it away with its -wal and -shm files"
    return Examination(facts, (Finding(grave=True, what=f"the file is damaged: {whole}", advice=advice),))
