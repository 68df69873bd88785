"""Where the file lies: on a disk of this machine only.

SQLite's write-ahead log needs memory that its users share. Over a network SQLite loses commits or damages the file, so
the engine refuses network filesystems when it opens.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from holdfast.errors import InvalidConfig
from holdfast.host import NETWORK, boot_id, filesystem, is_same_boot
from holdfast.interrupts import raise_if_of_signal, suppress_unless_signal

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

__all__ = ["boot_id", "disk_reason", "filesystem", "is_same_boot", "refuse_network", "trouble"]

_LEAST_ROOM = 65536  # SQLite enlarges its files by less


def refuse_network(path: Path) -> None:
    """Raise `InvalidConfig` if the directory is on a network or user-space filesystem."""
    kind = filesystem(path)
    if kind.startswith(NETWORK):
        raise InvalidConfig("url", f"sqlite://{path}", f"the filesystem there is {kind}; SQLite needs a local disk")


def disk_reason(path: Path, error: sqlite3.Error) -> str:
    """Return the `Unavailable.reason` for an I/O error of SQLite.

    SQLite reports an I/O error if a full disk keeps it from enlarging its shared memory. The reason `failed` would
    advise the user to move the file away, and so lose its leases.
    """
    name = getattr(error, "sqlite_errorname", "")
    if not name.startswith("SQLITE_IOERR"):
        return "failed"
    with suppress_unless_signal(OSError):
        disk = os.statvfs(path.parent)
        if disk.f_flag & os.ST_RDONLY:
            return "read-only"
        if name == "SQLITE_IOERR_SHMSIZE" or disk.f_bavail * disk.f_frsize < _LEAST_ROOM:
            return "full"
    return "failed"


def trouble(error: OSError) -> str:
    """Return the `Unavailable.reason` for an error of the system about a file."""
    raise_if_of_signal(error)
    if isinstance(error, PermissionError):
        return "no permission"
    return {errno.EROFS: "read-only", errno.ENOSPC: "full", errno.EDQUOT: "full"}.get(error.errno or 0, "unreachable")
