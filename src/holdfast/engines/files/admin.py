"""Names and leftovers of a shared directory: search, clean up, and report.

Every client cleans up in small steps, and removes only files that no client can need: names that were free for long,
and the drafts, trials and session files of dead clients.
"""

from __future__ import annotations

import os
import random
import stat
from typing import TYPE_CHECKING

from holdfast.clock import NS_PER_US, SYSTEM
from holdfast.engines.admin import EngineReport, Fact, NamePage
from holdfast.engines.files import codec
from holdfast.engines.files.escaping import name_of
from holdfast.engines.files.log import VersionLog, drop_draft
from holdfast.engines.files.root import UNFINISHED, drop_unfinished
from holdfast.engines.files.sessions import clear, look
from holdfast.errors import UnreadableRecord
from holdfast.host import EXHAUSTED
from holdfast.interrupts import raise_if_of_signal, suppress_unless_signal

if TYPE_CHECKING:
    from holdfast.engines.files.clocks import Clocks
    from holdfast.engines.files.root import Root

_AT_ONCE = 8
_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US
_WAKE = ".wake"


def names(root: Root, clocks: Clocks, prefix: str, limit: int) -> NamePage:
    """Return the names with the prefix, read from their newest versions."""
    found = []
    for folder in os.listdir(root.leases):
        log = VersionLog(root, folder)
        try:
            name = _name(folder, log, clocks)
        except OSError as error:
            raise_if_of_signal(error)
            if error.errno in EXHAUSTED:
                raise
            continue  # a draft, or a file that holdfast did not write
        finally:
            log.close()
        if name.startswith(prefix) and name:
            found.append(name)
    found.sort()
    return NamePage(tuple(found[:limit]), more=len(found) > limit)


def _name(folder: str, log: VersionLog, clocks: Clocks) -> str:
    """Return the name of a folder; empty if it has none. The folder itself names an unreadable version."""
    try:
        version = log.read()
        return codec.read(version.body, clocks).name if version.number else ""
    except (ValueError, UnreadableRecord) as error:
        raise_if_of_signal(error)
        return name_of(folder)


def sweep(root: Root, clocks: Clocks, wall_us: int) -> None:
    """Remove a few of the files that no client needs."""
    with suppress_unless_signal(OSError):
        for folder in _some(os.listdir(root.leases)):
            if folder.startswith("."):
                _drop_draft(root, folder, wall_us)
            else:
                _forget(root, clocks, folder, wall_us)
        for client in _some(os.listdir(root.clients)):
            _clear_dead_client(root, clocks, client.removesuffix(_WAKE), wall_us)
        for entry in os.listdir(root.home_folder.descriptor):
            if entry.startswith(UNFINISHED) and _is_old(root.home_folder.status(entry), wall_us):
                drop_unfinished(root.home_folder, entry)


def _is_old(status: os.stat_result, wall_us: int) -> bool:
    """Return true if the file was last changed an hour ago or earlier, by the calendar of the file server."""
    return wall_us - status.st_mtime_ns // NS_PER_US >= _HOUR_US


def _some(entries: list[str]) -> list[str]:
    return random.sample(entries, min(_AT_ONCE, len(entries)))


def _forget(root: Root, clocks: Clocks, folder: str, wall_us: int) -> None:
    """Remove a name that was free for longer than the engine remembers its fence.

    The boot clock of this machine proves that; for a name that is a day old, the calendar of the file server does.
    """
    log = VersionLog(root, folder)
    try:
        version = log.read()
        log.clear_drafts(lambda status: _is_old(status, wall_us))
        if version.number == 0:
            log.forget()
            return
        stored = codec.read(version.body, clocks)
        record, memory_us = stored.record, stored.memory_us
        now_us = SYSTEM.now_ns() // NS_PER_US
        if record.holder is not None or record.waiters.clients or record.tombstones.ends_us > now_us:
            return
        age_us = wall_us - log.written_ns(version.number) // NS_PER_US
        if now_us - record.touched_us >= memory_us or age_us >= max(_DAY_US, memory_us):
            log.forget()
    except (OSError, ValueError, UnreadableRecord) as error:
        raise_if_of_signal(error)
        return
    finally:
        log.close()


def _drop_draft(root: Root, name: str, wall_us: int) -> None:
    """Remove a folder that a client made an hour ago or earlier and never renamed into place."""
    with suppress_unless_signal(OSError):
        if _is_old(root.leases_folder.status(name), wall_us):
            drop_draft(root, name)


def _clear_dead_client(root: Root, clocks: Clocks, client: str, wall_us: int) -> None:
    """Remove the files of a client that died an hour ago or earlier; until then its file proves its death to others."""
    with suppress_unless_signal(OSError):
        status = root.clients_folder.status(client)
        if not stat.S_ISREG(status.st_mode) or not _is_old(status, wall_us):
            return
        seen = look(root, clocks, client)
        now_us = SYSTEM.now_ns() // NS_PER_US
        if seen.gone or (seen.pid == 0 and now_us - seen.heartbeat_us > _HOUR_US):
            clear(root, client)
            root.clients_folder.remove(f"{client}{_WAKE}")


def examine(root: Root, clocks: Clocks) -> EngineReport:
    """Return the facts about the directory, its filesystem and its clients."""
    clients = [look(root, clocks, name) for name in os.listdir(root.clients) if not name.endswith(_WAKE)]
    folders = [name for name in os.listdir(root.leases) if not name.startswith(".")]
    free = os.statvfs(root.directory)
    dead = sum(client.gone for client in clients)
    alive, bytes_free = len(clients) - dead, free.f_bavail * free.f_frsize
    facts = (
        Fact("directory", str(root.directory), {"directory": str(root.directory)}),
        Fact("filesystem", root.kind or "unknown", {"filesystem": root.kind or None}),
        Fact("names remembered", str(len(folders)), {"names": len(folders)}),
        Fact("clients", str(alive), {"clients": alive}),
        Fact("left by dead clients", f"{dead} (cleared after an hour)", {"dead_clients": dead}),
        Fact(
            "free",
            f"{bytes_free // 2**20} MiB, {free.f_favail} files",
            {"bytes_free": bytes_free, "files_free": free.f_favail},
        ),
        Fact("clock", "each machine's own, counted from boot; never compared", {"clock": "boot"}),
    )
    return EngineReport(facts)
