"""Where the file is: only on a disk of this machine, and under which boot of it.

SQLite's write-ahead log needs shared memory between its users. Over a network it loses commits or breaks the file, so
network filesystems are refused when the engine is opened.
"""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path

from holdfast.errors import InvalidConfig

# The kernel writes blanks, line breaks and backslashes of a mount point as octal numbers, and all else as it is.
_OCTAL = re.compile(r"\\([0-7]{3})")

_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "9p",
    "virtiofs",
    "fuse",
    "ceph",
    "lustre",
    "afs",
    "gluster",
    "beegfs",
    "ocfs2",
    "gfs2",
)


def refuse_network(path: Path) -> None:
    """`InvalidConfig` if the directory is on a network or user-space filesystem."""
    kind = filesystem(path)
    if kind.startswith(_NETWORK):
        raise InvalidConfig("url", f"sqlite://{path}", f"the filesystem there is {kind}; SQLite needs a local disk")


def filesystem(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the filesystem that holds the path; empty where the system does not tell."""
    if not mounts.exists():
        return ""

    best, kind = -1, ""
    for line in mounts.read_bytes().decode("utf-8", "surrogateescape").split("\n"):
        left, _, right = line.partition(" - ")
        if not right:
            continue
        point = _OCTAL.sub(lambda code: chr(int(code[1], 8)), left.split(" ")[4])
        if path.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), right.split()[0]
    return kind


def trouble(error: OSError) -> str:
    """What the system says about a file, as the word in `Unavailable.reason`."""
    if isinstance(error, PermissionError):
        return "no permission"
    return {errno.EROFS: "read-only", errno.ENOSPC: "full", errno.EDQUOT: "full"}.get(error.errno or 0, "unreachable")


def boot_id() -> str:
    """Which boot of the machine this is: times of another boot mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        if sys.platform != "darwin":
            return "unknown"
    ask = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
    return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
