"""What is left in a shared directory: which names there are, what may be cleared away, and whether all is well.

Clearing away is done in small steps by whoever uses the directory, and only of what nobody can need: names that have
long been free, and what clients left that died: drafts, trials, signs of life.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
from typing import TYPE_CHECKING

from holdfast.clock import NS_PER_US, SYSTEM
from holdfast.engines.admin import EngineReport, Fact, NamePage
from holdfast.engines.fifo_listener import FifoListener
from holdfast.engines.files import codec as paper
from holdfast.engines.files.log import Register
from holdfast.engines.files.root import DIRECTORY, UNFINISHED
from holdfast.engines.files.sessions import clear, look

if TYPE_CHECKING:
    from holdfast.engines.files.clocks import Dates
    from holdfast.engines.files.root import Ground

_AT_ONCE = 8
_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US
_WAKE = ".wake"


def names(ground: Ground, dates: Dates, prefix: str, limit: int) -> NamePage:
    """Names that begin so, read from their sheets."""
    found = []
    for folder in os.listdir(ground.leases):
        register = Register(ground, folder)
        try:
            sheet = register.read()
            name = paper.read(sheet.body, dates).name if sheet.number else ""
        except (OSError, ValueError, LookupError, TypeError):
            continue  # a draft, or not of our making
        finally:
            register.close()
        if name.startswith(prefix) and name:
            found.append(name)
    found.sort()
    return NamePage(tuple(found[:limit]), more=len(found) > limit)


def sweep(ground: Ground, dates: Dates, wall_us: int) -> None:
    """Clear away a little of what nobody needs."""
    with contextlib.suppress(OSError):
        for folder in _some(os.listdir(ground.leases)):
            if folder.startswith("."):
                _drop_draft(ground.leases, folder, wall_us)
            else:
                _forget(ground, dates, folder, wall_us)
        for client in _some(os.listdir(ground.clients)):
            _bury(ground, dates, client.removesuffix(_WAKE), wall_us)
        for entry in os.listdir(ground.home):
            if entry.startswith(UNFINISHED) and _is_old(f"{ground.home}/{entry}", None, wall_us):
                FifoListener.remove(f"{ground.home}/{entry}")
                shutil.rmtree(f"{ground.home}/{entry}", ignore_errors=True)


def _is_old(path: str, folder: int | None, wall_us: int) -> bool:
    """Whether it was left an hour ago, by the calendar of whoever keeps the files."""
    return wall_us - os.stat(path, dir_fd=folder, follow_symlinks=False).st_mtime_ns // NS_PER_US >= _HOUR_US


def _some(entries: list[str]) -> list[str]:
    return random.sample(entries, min(_AT_ONCE, len(entries)))


def _forget(ground: Ground, dates: Dates, folder: str, wall_us: int) -> None:
    """A name that has been free for longer than its fence is remembered. After a day the calendar is proof enough."""
    register = Register(ground, folder)
    try:
        sheet = register.read()
        for draft in register.drafts():
            if _is_old(f"{folder}/{draft}", ground.leases, wall_us):
                os.unlink(f"{folder}/{draft}", dir_fd=ground.leases)
        if sheet.number == 0:
            register.forget()
            return
        written = paper.read(sheet.body, dates)
        record, memory_us = written.record, written.memory_us
        now_us = SYSTEM.now_ns() // NS_PER_US
        if record.holder is not None or record.waiters.clients or record.tombstones.ends_us > now_us:
            return
        age_us = wall_us - register.written_ns(sheet.number) // NS_PER_US
        if now_us - record.touched_us >= memory_us or age_us >= max(_DAY_US, memory_us):
            register.forget()
    except (OSError, ValueError, LookupError, TypeError):
        return
    finally:
        register.close()


def _drop_draft(folder: int, name: str, wall_us: int) -> None:
    """A folder that somebody was about to put into place an hour ago."""
    with contextlib.suppress(OSError):
        if not _is_old(name, folder, wall_us):
            return
        draft = os.open(name, DIRECTORY, dir_fd=folder)
        try:
            for entry in os.listdir(draft):
                os.unlink(entry, dir_fd=draft)
        finally:
            os.close(draft)
        os.rmdir(name, dir_fd=folder)


def _bury(ground: Ground, dates: Dates, client: str, wall_us: int) -> None:
    """What a client left that died an hour ago; until then its file is what proves that it died."""
    with contextlib.suppress(OSError):
        status = os.stat(client, dir_fd=ground.clients, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode) or not _is_old(client, ground.clients, wall_us):
            return
        seen = look(ground, dates, client)
        now_us = SYSTEM.now_ns() // NS_PER_US
        if seen.gone or (seen.pid == 0 and now_us - seen.marked_us > _HOUR_US):
            clear(ground, client)
            FifoListener.remove(f"{ground.home}/clients/{client}{_WAKE}")


def examine(ground: Ground, dates: Dates) -> EngineReport:
    """The directory, its filesystem, and who uses it."""
    clients = [look(ground, dates, name) for name in os.listdir(ground.clients) if not name.endswith(_WAKE)]
    folders = [name for name in os.listdir(ground.leases) if not name.startswith(".")]
    free = os.statvfs(ground.root)
    dead = sum(client.gone for client in clients)
    alive, bytes_free = len(clients) - dead, free.f_bavail * free.f_frsize
    facts = (
        Fact("directory", str(ground.root), {"directory": str(ground.root)}),
        Fact("filesystem", ground.kind or "unknown", {"filesystem": ground.kind or None}),
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
