"""Where the file lies: on a disk of this machine only.

SQLite's write-ahead log needs memory that its users share. Over a network SQLite loses commits or damages the file, so
the engine refuses network filesystems when it opens.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from holdfast.errors import InvalidConfig
from holdfast.host import NETWORK, boot_id, filesystem, is_same_boot

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["boot_id", "filesystem", "is_same_boot", "refuse_network", "trouble"]


def refuse_network(path: Path) -> None:
    """Raise `InvalidConfig` if the directory is on a network or user-space filesystem."""
    kind = filesystem(path)
    if kind.startswith(NETWORK):
        raise InvalidConfig("url", f"sqlite://{path}", f"the filesystem there is {kind}; SQLite needs a local disk")


def trouble(error: OSError) -> str:
    """Return the `Unavailable.reason` for an error of the system about a file."""
    if isinstance(error, PermissionError):
        return "no permission"
    return {errno.EROFS: "read-only", errno.ENOSPC: "full", errno.EDQUOT: "full"}.get(error.errno or 0, "unreachable")
