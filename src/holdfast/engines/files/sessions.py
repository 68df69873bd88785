"""A client's sign of life: a file that it keeps locked, and in which it says now and then that it lives.

The lock is on the open file itself. So whether a client of this machine lives is a question to the kernel: the answer
comes at once after a SIGKILL, and neither a reused pid nor a container can fool it. Child processes that inherit the
descriptor keep the lock, and with it the leases under which they run.

A lock on a network filesystem proves nothing that could be relied on, and may hang. There the locked file lies in a
directory of this machine. A client whose lock cannot be looked at is not taken for dead: its ttl decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import NEVER_NS, NS_PER_US, SYSTEM
from holdfast.engines.files.clocks import Date
from holdfast.engines.files.root import FRESH
from holdfast.errors import InvalidConfig
from holdfast.names import new_token

if TYPE_CHECKING:
    from holdfast.engines.files.clocks import Dates
    from holdfast.engines.files.root import Ground

_MARK_EVERY_US = 1_000_000
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LINE_MAX = 200
_SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB
_MINE = fcntl.LOCK_EX | fcntl.LOCK_NB


class Seen(NamedTuple):
    """Another client, as it is seen just now. `pid` is 0 where it is not one of this machine."""

    client: str
    pid: int
    marked_us: int
    gone: bool


class Session:
    """This client's own."""

    def __init__(self, ground: Ground, dates: Dates) -> None:
        self.client = new_token()
        self._ground = ground
        self._dates = dates
        self._marked_us = 0
        self.skew_us = 0  # from this machine's boot clock to the calendar of whoever keeps the files
        self._file = self.lock = os.open(self.client, FRESH, ground.file_mode, dir_fd=ground.clients)
        self._open = [self._file]
        try:
            if ground.file_mode & 0o060:
                os.fchmod(self._file, ground.file_mode)
            self.mark()
            if ground.network:
                self.lock = os.open(_lock_path(self.client), FRESH, 0o600)
                self._open.append(self.lock)
            fcntl.flock(self.lock, _MINE)
        except BaseException:
            self.close()
            raise

    def mark(self) -> None:
        """Say that this client lives, unless it has just said so."""
        now_us = SYSTEM.now_ns() // NS_PER_US
        if now_us - self._marked_us < _MARK_EVERY_US:
            return
        os.pwrite(self._file, f"{self._dates.boot} {os.getpid()} {now_us:020d}\n".encode(), 0)
        self._marked_us = now_us
        self.skew_us = os.fstat(self._file).st_mtime_ns // NS_PER_US - SYSTEM.now_ns() // NS_PER_US

    def wall_us(self) -> int:
        """The calendar of whoever keeps the files."""
        return SYSTEM.now_ns() // NS_PER_US + self.skew_us

    def forked(self) -> None:
        """In a child: its copies go, and the lock stays with the parent alone."""
        self._close_files()

    def close(self) -> None:
        """It goes before its lock does: an absent client is not a dead one, and what it held lapses by its ttl."""
        clear(self._ground, self.client)
        self._close_files()

    def _close_files(self) -> None:
        """May be said twice, also where the first was interrupted."""
        while self._open:
            os.close(self._open.pop())


def look(ground: Ground, dates: Dates, client: str) -> Seen:
    """Whether another client lives, as far as it can be seen from here."""
    try:
        descriptor = os.open(client, _READ, dir_fd=ground.clients)
    except OSError:
        return Seen(client, 0, -NEVER_NS, gone=False)
    try:
        boot, pid, marked_us = os.read(descriptor, _LINE_MAX).split()
        date = Date(boot.decode(), int(marked_us), 0)
        here = date.boot == dates.boot
        gone = here and (_is_dead(client) if ground.network else _is_free(descriptor))
        return Seen(client, int(pid) if here else 0, dates.here_us(date), gone)
    except (OSError, ValueError):
        return Seen(client, 0, -NEVER_NS, gone=False)
    finally:
        os.close(descriptor)


def clear(ground: Ground, client: str) -> None:
    """Take away the files of a client that is dead, or about to go."""
    with contextlib.suppress(OSError):
        os.unlink(client, dir_fd=ground.clients)
    if ground.network:
        with contextlib.suppress(OSError, InvalidConfig):
            os.unlink(_lock_path(client))


def _is_free(descriptor: int) -> bool:
    """Nobody has it locked, and it is still there: a client that was closed has taken it away."""
    try:
        fcntl.flock(descriptor, _SHARED)
    except OSError:
        return False
    return os.fstat(descriptor).st_nlink > 0


def _is_dead(client: str) -> bool:
    try:
        descriptor = os.open(_lock_path(client), _READ)
    except OSError:
        return False
    try:
        return _is_free(descriptor)
    finally:
        os.close(descriptor)


def _lock_path(client: str) -> str:
    folder = Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise InvalidConfig("TMPDIR", str(folder), "it must be a directory of this user")
    return str(folder / client)
