"""A client's session: a file that the client keeps locked, and into which it writes its heartbeats.

The lock is on the open file. So the kernel knows whether a client of this machine lives: the lock is free right after a
SIGKILL, and neither a reused pid nor a container can mislead the check. Child processes that inherit the descriptor
keep the lock, and with it the leases under which they work.

A lock on a network filesystem proves nothing, and may hang. There the client locks a file in a directory of its own
machine. A client whose lock cannot be checked does not count as dead: its ttl decides.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import NEVER_NS, NS_PER_US, SYSTEM
from holdfast.engines.files.clocks import Timestamp
from holdfast.host import EXHAUSTED
from holdfast.interrupts import raise_if_of_signal, suppress_unless_signal
from holdfast.names import new_token
from holdfast.shared_files import Folder

if TYPE_CHECKING:
    from holdfast.engines.files.clocks import Clocks
    from holdfast.engines.files.root import Root

_HEARTBEAT_EVERY_US = 1_000_000
_LINE_MAX = 200
_SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB
_EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB


class ClientState(NamedTuple):
    """Another client at this moment. `pid` is 0 for a client of another machine; `gone`: its process is proven dead."""

    client: str
    pid: int
    heartbeat_us: int
    gone: bool


class FileSession:
    """This client's own session."""

    def __init__(self, root: Root, clocks: Clocks) -> None:
        self.client = new_token()
        self._root = root
        self._clocks = clocks
        self._heartbeat_us = 0
        self.outlives, self._held_until_us = False, 0  # whether the leases outlive the process, and until when
        self.skew_us = 0  # from this machine's boot clock to the calendar of the file server
        self._file = self.lock = root.clients_folder.create(self.client)
        self._open = [self._file]
        try:
            self.heartbeat()
            if root.network:
                self.lock = _lock_folder().create(self.client)
                self._open.append(self.lock)
            fcntl.flock(self.lock, _EXCLUSIVE)
        except BaseException:
            self.close()
            raise

    def heartbeat(self) -> None:
        """Write a heartbeat, unless the last one is less than a second old."""
        now_us = SYSTEM.now_ns() // NS_PER_US
        if now_us - self._heartbeat_us < _HEARTBEAT_EVERY_US or self._held_until_us:
            return
        self._write(now_us)
        self._heartbeat_us = now_us
        self.skew_us = os.fstat(self._file).st_mtime_ns // NS_PER_US - SYSTEM.now_ns() // NS_PER_US

    def _write(self, heartbeat_us: int) -> None:
        os.pwrite(self._file, f"{self._clocks.boot} {os.getpid()} {heartbeat_us:020d}\n".encode(), 0)

    def hold_until(self, until_us: int) -> None:
        """Write until when a lease lasts, if it outlives this process: before that, the client does not count as dead.

        The time takes the place of the heartbeat, as a negative number.
        """
        if self.outlives:
            self._held_until_us = max(self._held_until_us, until_us)
            self._write(-self._held_until_us)

    def wall_us(self) -> int:
        """Return the time on the calendar of the file server."""
        return SYSTEM.now_ns() // NS_PER_US + self.skew_us

    def forked(self) -> None:
        """In a forked child: close the child's copies, so that only the parent has the lock."""
        self._close_files()

    def close(self) -> None:
        """Remove the file before the lock: an absent client does not count as dead; its leases expire by their ttl."""
        clear(self._root, self.client)
        self._close_files()

    def _close_files(self) -> None:
        """Close each descriptor once, also if an interrupt leads to a second call."""
        while self._open:
            os.close(self._open.pop())


def look(root: Root, clocks: Clocks, client: str) -> ClientState:
    """Return the state of another client, as far as this machine can see it."""
    try:
        descriptor = root.clients_folder.open(client)
    except OSError as error:
        raise_if_of_signal(error)
        if error.errno in EXHAUSTED:
            raise  # it says nothing about the other client
        return ClientState(client, 0, -NEVER_NS, gone=False)
    try:
        boot, pid, heartbeat = os.read(descriptor, _LINE_MAX).split()
        heartbeat_us = int(heartbeat)
        timestamp = Timestamp(boot.decode(), abs(heartbeat_us), 0)
        here = timestamp.boot == clocks.boot
        outlives = -heartbeat_us * NS_PER_US > SYSTEM.now_ns()
        gone = here and not outlives and (_is_dead(client) if root.network else _is_free(descriptor))
        return ClientState(client, int(pid) if here else 0, clocks.here_us(timestamp), gone)
    except (OSError, ValueError) as error:
        raise_if_of_signal(error)
        return ClientState(client, 0, -NEVER_NS, gone=False)
    finally:
        os.close(descriptor)


def clear(root: Root, client: str) -> None:
    """Remove the files of a client that is dead or closes."""
    with suppress_unless_signal(OSError):
        root.clients_folder.remove(client)
    if root.network:
        with suppress_unless_signal(OSError):
            _lock_folder().remove(client)


def _is_free(descriptor: int) -> bool:
    """Return true if no process has locked the file and it still exists: a client that closes removes its file."""
    try:
        fcntl.flock(descriptor, _SHARED)
    except OSError as error:
        raise_if_of_signal(error)
        return False
    return os.fstat(descriptor).st_nlink > 0


def _is_dead(client: str) -> bool:
    try:
        descriptor = _lock_folder().open(client)
    except OSError as error:
        raise_if_of_signal(error)
        return False
    try:
        return _is_free(descriptor)
    finally:
        os.close(descriptor)


def _lock_folder() -> Folder:
    """Return a directory of this machine for the locks of this user."""
    above = Folder(os.path.realpath(tempfile.gettempdir()), private=True)
    return above.make_folder(f"holdfast-{os.geteuid()}")
