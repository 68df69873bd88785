"""What people may ask of a SQLite file: the names in it, and whether anything was left behind beside it."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from holdfast.commands.queue_admin import QUEUES
from holdfast.engines.admin import EngineReport, Fact, Finding, NamePage
from holdfast.engines.sqlite import lifeline
from holdfast.engines.sqlite import location as place

if TYPE_CHECKING:
    from holdfast.engines.sqlite.database import Database


_AT_ONCE = 1000
# Where names are kept that are not those of pools; each has a table of its own.
_KEPT = {"": "record WHERE ? = ''", QUEUES: f"queue WHERE ? = '{QUEUES}'"}


def names(database: Database, prefix: str, limit: int, kind: str = "") -> NamePage:
    """Names in the file, in order, without the keys of directories: those that begin alike stand together.

    A few at a time: whoever wants a lease meanwhile finds the gate open between two looks.
    """
    found: list[str] = []
    kept = _KEPT.get(kind, "pool WHERE roof = ?")
    ask = f"SELECT name FROM {kept} AND name >= ? ORDER BY name LIMIT ?"  # noqa: S608 - all texts stand here

    def look(link: sqlite3.Cursor) -> list[str]:
        return [row[0] for row in link.execute(ask, (kind, start, _AT_ONCE))]

    start = prefix
    while len(found) <= limit:
        some = database.transact(look)
        found += [name for name in some if name.startswith(prefix) and "\0" not in name]
        if len(some) < _AT_ONCE or not some[-1].startswith(prefix):
            break
        start = (
            f"{some[-1]}\0"  # where the next one may be: what has a NUL inside, keys of directories, stands behind it
        )
    return NamePage(tuple(found[:limit]), more=len(found) > limit)


def examine(database: Database) -> EngineReport:
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
    version, file = f"SQLite {sqlite3.sqlite_version}", str(database.path)
    disk = place.filesystem(database.path.parent) or None
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
    if whole == "ok":
        return EngineReport(facts)
    advice = f"stop every user of {database.path} and move it away with its -wal and -shm files"
    return EngineReport(facts, (Finding(serious=True, what=f"the file is damaged: {whole}", advice=advice),))
