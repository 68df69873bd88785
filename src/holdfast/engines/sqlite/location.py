"""Where the file is: only on a disk of this machine, and under which boot of it.

SQLite's write-ahead log needs shared memory between its users. Over a network it loses commits or breaks the file, so
network filesystems are refused when the engine is opened.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from holdfast.errors import InvalidConfig
from holdfast.host import NETWORK, boot_id, filesystem

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["boot_id", "filesystem", "refuse_network"]


def refuse_network(path: Path) -> None:
    """`InvalidConfig` if the directory is on a network or user-space filesystem."""
    kind = filesystem(path)
    if kind.startswith(NETWORK):
        raise InvalidConfig("url", f"sqlite://{path}", f"the filesystem there is {kind}; SQLite needs a local disk")


def trouble(error: OSError) -> str:
    """What the system says about a file, as the word in `Unavailable.reason`."""
    if isinstance(error, PermissionError):
        return "no permission"
    return {errno.EROFS: "read-only", errno.ENOSPC: "full", errno.EDQUOT: "full"}.get(error.errno or 0, "unreachable")
