"""Facts from the operating system: the filesystem of a path, the boot of the machine, the meaning of its errors."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import Unavailable, UnavailableReason
from holdfast.interrupts import raise_if_of_signal

if TYPE_CHECKING:
    import threading

# The kernel writes blanks, line breaks and backslashes of a mount point as octal numbers, and all other characters as
# they are.
_OCTAL = re.compile(r"\\([0-7]{3})")

# Filesystems that other machines or programs may change.
NETWORK = (
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


def filesystem(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the filesystem that the path is on; empty if the system does not report it."""
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


def boot_id() -> str:
    """Return an id of the clock of this process: readings from another boot or time namespace cannot be compared.

    The first part names the boot of the machine. A process in a time namespace has a second part: the shift of its
    clock. Raise `OSError` if the system does not answer now, because any other id would end leases that are held.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, PermissionError):
        if sys.platform != "darwin":
            return "unknown"
        command = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    shift = _clock_shift()
    return f"{boot}@{shift}" if shift else boot


def is_same_boot(one: str, other: str) -> bool:
    """Return true if two ids name the same boot of the machine, though perhaps different clocks."""
    return one.partition("@")[0] == other.partition("@")[0]


def _clock_shift() -> str:
    """Return how far the time namespace shifts the boot-time clock of this process; empty if not at all."""
    try:
        here = os.readlink("/proc/self/ns/time")
        if here != os.readlink("/proc/self/ns/time_for_children"):
            return here  # the system tells only the shift that the children of this process will have
        lines = Path("/proc/self/timens_offsets").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return ""  # this kernel has no time namespaces
    clock, seconds, nanoseconds = next(line.split() for line in lines if line.startswith("boottime"))
    return "" if (seconds, nanoseconds) == ("0", "0") else f"{clock}{int(seconds):+d}.{int(nanoseconds):09d}"


_REASONS = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EROFS: "read-only",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EMFILE: "out of descriptors",
    errno.ENFILE: "out of descriptors",
}
KNOWN_ERRORS = frozenset(_REASONS)
# This process, or the whole system, has no descriptor or memory left for the moment.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_exhausted(error: BaseException | None) -> bool:
    """Return true if the error, or one that led to it, says that no descriptor or memory is left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            return True
        error = error.__cause__ or error.__context__
    return False


class Exhaustion:
    """Turn `EMFILE`, `ENFILE` and `ENOMEM` inside the block into `Unavailable`: `with Exhaustion("redis"):`.

    Use it around imports too, because an import opens files.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        """Do nothing; the code follows."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Replace the error of the system."""
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            raise unavailable_error(self._engine, error) from error


class ProcessStart(Exhaustion):
    """Guard code that starts a process: raise `Unavailable` also if the system refuses a process."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Replace the error of the system."""
        if isinstance(error, BlockingIOError):
            detail = f"{error.strerror}: this user, or this container, has too many processes"
            raise Unavailable(self._engine, UnavailableReason.OUT_OF_PROCESSES, detail) from error
        super().__exit__(kind, error, trace)


def start_thread(thread: threading.Thread, engine: str) -> None:
    """Start a thread; raise `Unavailable` if the system refuses one."""
    try:
        thread.start()
    except RuntimeError as error:
        raise out_of_threads(engine, error) from error


def out_of_threads(engine: str, error: RuntimeError) -> Unavailable:
    """Return the `Unavailable` for a thread that the system refused."""
    raise_if_of_signal(error)
    rule = "this process may start no more; end some threads, or raise the limit (ulimit -u, pids.max)"
    return Unavailable(engine, UnavailableReason.OUT_OF_THREADS, f"{error}: {rule}")


def unavailable_error(engine: str, error: OSError) -> Unavailable:
    """Return the `Unavailable` for an error of the operating system: which path, and what is wrong with it."""
    raise_if_of_signal(error)
    where = f"{error.filename!s}: " if error.filename else ""
    reason = _REASONS.get(error.errno or 0, "unreachable")
    uid = f" (as user {os.geteuid()})" if reason == "no permission" else ""
    return Unavailable(engine, reason, f"{where}{error.strerror}{uid}")
