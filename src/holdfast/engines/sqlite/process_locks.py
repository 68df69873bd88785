"""Lock files: the gate that transactions pass one at a time, and the live file that proves which sessions live.

A process opens a lock file once. POSIX locks belong to the process, and the kernel drops them when the process closes
*any* descriptor of the file; so there is one descriptor per file (found by device and inode), and it stays open for as
long as a database uses the file or a byte of it is locked. The engine uses POSIX locks because a forked child does not
inherit them: a child that outlives its parent must not keep the dead parent's locks.

The death of a parent must not free a lease under which its child still works, if the child has the session's liveness
descriptor. So the parent can lock a second byte of the live file on an open file description, which children inherit:
the kernel drops that lock when the last process that has the descriptor ends. A session is dead when both bytes are
free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING

from holdfast.errors import InvalidConfig, Unavailable, UnavailableReason
from holdfast.observer import log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MODE = 0o600
STALL_S = 5.0
_SLOW_S = 1.0
_ANNOUNCE_S = 0.005
_TRIES = 20
_NAP_S = 0.00005
_ASIDE_S = 0.0001
_LOOK_EVERY = 4
_WAITERS, _NO_WAITERS = b"1", b"0"
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB

# struct flock: the fields and their order differ between the kernels.
_LINUX = "hhqqi4x"
_DARWIN = "qqihh"

# The inheritable byte of a session lies far beyond any number that a session will ever have.
_INHERITED = 1 << 40


class LockFile:
    """One file, its one descriptor in this process, and the bytes of it that this process has locked."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.inode = os.fstat(descriptor).st_ino
        self.device = os.fstat(descriptor).st_dev
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self.begin()

    def begin(self) -> None:
        """Start without a lock; also in a forked child, because the locks and the threads stayed with the parent."""
        # An RLock knows its thread, so that a thread that was interrupted between two lines can find out whether it has
        # the mutex: `mine_now` returns true in the thread that has it. threading.Condition uses the same method.
        self.mutex = threading.RLock()
        self.mine_now: Callable[[], bool] = self.mutex._is_owned  # type: ignore[attr-defined]  # noqa: SLF001
        self.mine: set[int] = set()
        self._turn: _KernelWait | None = None
        self.kernel_waits: set[_KernelWait] = set()
        self._passes = 0

    def close_if_idle(self) -> bool:
        """Close the file, and return true, if no database uses it, no byte is locked and no thread waits for one."""
        if self.users or self.mine or self.kernel_waits:
            return False
        os.close(self.descriptor)
        return True

    def lock(self, byte: int) -> bool:
        """Lock one byte for this process without waiting; return true if it is locked now."""
        try:
            fcntl.lockf(self.descriptor, _TRY, 1, byte)
        except (BlockingIOError, PermissionError):
            return False
        self.mine.add(byte)
        return True

    def unlock(self, byte: int) -> None:
        self.mine.discard(byte)
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, byte)

    def holder(self, byte: int) -> int | None:
        """Return the pid of the process that has locked this byte, or `None`; 0 if its pid is not visible from here."""
        if byte in self.mine:
            return os.getpid()
        if sys.platform == "darwin":
            query = struct.pack(_DARWIN, byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
            answer = struct.unpack(_DARWIN, fcntl.fcntl(self.descriptor, fcntl.F_GETLK, query))
            kind, pid = answer[3], answer[2]
        else:
            query = struct.pack(_LINUX, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
            answer = struct.unpack(_LINUX, fcntl.fcntl(self.descriptor, fcntl.F_GETLK, query))
            kind, pid = answer[0], answer[4]
        return None if kind == fcntl.F_UNLCK else max(0, pid)

    def take_mutex(self, until_s: float) -> None:
        """Acquire the mutex, or raise `Unavailable` at `until_s`: its thread may wait for a suspended process."""
        if not self.mutex.acquire(timeout=max(0.0, until_s - time.monotonic())):
            raise self._stalled()

    def _stalled(self) -> Unavailable:
        pid = self.holder(0)
        reading = pid is None and not self.mine_now()  # the gate is open: a thread of this process reads a snapshot
        who = "another thread of this process" if reading else f"process {pid}"
        return Unavailable(
            "sqlite",
            UnavailableReason.STALLED,
            f"{who} has locked {self.path} for too long, in the middle of a transaction: resume or end it",
        )

    def enter(self, until_s: float) -> None:
        """Lock byte 0 for this process, or raise `Unavailable`, which names the process that has it.

        The caller has the mutex. First make a few quick tries, because a process holds the gate for microseconds. Then
        a thread waits in the kernel, which is fair but cannot be interrupted; the thread gives the lock back if its
        caller has gone.
        """
        for attempt in range(_TRIES):
            if self.lock(0):
                return
            self._announce_waiter()
            if attempt < _TRIES // 2:
                _yield_cpu()
            else:
                time.sleep(_NAP_S)
        if time.monotonic() < until_s and self._wait_in_kernel(until_s):
            self.mine.add(0)
            return
        raise self._stalled()

    def leave(self) -> None:
        """Unlock byte 0. A second call does nothing."""
        self.unlock(0)

    def step_aside(self) -> None:
        """After leaving, sleep for a moment now and then if another process waits.

        The kernel wakes the first waiting process, but does not reserve the lock for it: a running process would take
        the lock again before the woken one runs, and on a busy machine that would repeat without end.
        """
        self._passes += 1
        if self._passes % _LOOK_EVERY:
            return
        with contextlib.suppress(OSError):  # the work is done, and a failed hint must not fail it
            if os.pread(self.descriptor, 1, 0) == _WAITERS:
                os.pwrite(self.descriptor, _NO_WAITERS, 0)
                time.sleep(_ASIDE_S)

    def _announce_waiter(self) -> None:
        with contextlib.suppress(OSError):  # the disk may be full, and this is only a hint
            os.pwrite(self.descriptor, _WAITERS, 0)

    def _wait_in_kernel(self, until_s: float) -> bool:
        logged = False
        began_s = time.monotonic()
        try:
            turn = self._turn
            if turn is None or not turn.resume():
                turn = self._turn = _KernelWait(self)
                turn.begin()
            while (left_s := until_s - time.monotonic()) > 0:
                if turn.done.wait(min(_ANNOUNCE_S, left_s)):
                    return turn.has_lock()
                self._announce_waiter()
                if not logged and time.monotonic() - began_s >= _SLOW_S:
                    logged = True
                    log.warning("waiting for the gate %s, held by process %s", self.path, self.holder(0))
        except BaseException:
            # After an interrupt, no thread may keep waiting in the kernel for a caller that has gone.
            if self._turn is not None:
                self._turn.abandon()
                self._turn = None
            raise
        return turn.abandon()


class _KernelWait:
    """A thread that waits in the kernel for byte 0, on behalf of the thread of this process that has the mutex."""

    def __init__(self, file: LockFile) -> None:
        self.done = threading.Event()
        self._file = file
        self._guard = threading.Lock()
        self._state = "wanted"

    def begin(self) -> None:
        self._file.kernel_waits.add(self)
        threading.Thread(target=self._run, name="holdfast-gate", daemon=True).start()

    def _run(self) -> None:
        try:
            self._lock()
        finally:
            self._file.kernel_waits.discard(self)

    def _lock(self) -> None:
        try:
            fcntl.lockf(self._file.descriptor, fcntl.LOCK_EX, 1, 0)
        except OSError:  # the kernel assumes a deadlock between two gates; the caller tries again
            self._state = "failed"
            self.done.set()
            return
        with self._guard:
            unwanted = self._state == "abandoned"
            self._state = "over" if unwanted else "locked"
        if unwanted:
            # Another thread of this process may be inside the gate by now, and the lock belongs to the process. Holding
            # the mutex makes sure that no thread is inside.
            with self._file.mutex:
                fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN, 1, 0)
        self.done.set()

    def has_lock(self) -> bool:
        """Return true if the kernel granted the lock to this wait."""
        return self._state == "locked"

    def abandon(self) -> bool:
        """Stop waiting; return true if the lock came at the last moment: then the caller has it."""
        with self._guard:
            if self._state == "wanted":
                self._state = "abandoned"
            return self._state == "locked"

    def resume(self) -> bool:
        """Continue to wait at the same place in the kernel's line; return false if that place is used up."""
        with self._guard:
            if self._state == "abandoned":
                self._state = "wanted"
            return self._state == "wanted"


def _yield_cpu() -> None:
    if hasattr(os, "sched_yield"):
        os.sched_yield()
    else:
        time.sleep(0)


_files: dict[tuple[int, int], LockFile] = {}
_files_lock = threading.Lock()


def open_lockfile(path: Path, user: object) -> LockFile:
    """Return this process's one handle on the file, which stays open for as long as `user` lives."""
    with _files_lock:
        file = _find_or_open(path)
        file.users.add(user)
        return file


def _find_or_open(path: Path) -> LockFile:
    # Look before opening, because closing a second descriptor would drop the locks.
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(path, follow_symlinks=False)
        if known := _files.get((status.st_dev, status.st_ino)):
            return known
    for key in [key for key, file in _files.items() if file.close_if_idle()]:
        del _files[key]
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    status = os.fstat(descriptor)
    return _files.setdefault((status.st_dev, status.st_ino), LockFile(str(path), descriptor))


def _forget_locks() -> None:
    global _files_lock  # noqa: PLW0603
    _files_lock = threading.Lock()
    for file in _files.values():
        file.begin()


os.register_at_fork(after_in_child=_forget_locks)


# By device, inode and session: one descriptor for each session, however often a caller asks for it.
_inherited_locks: dict[tuple[int, int, int], int] = {}


def inherited_lock_is_held(live: LockFile, session: int) -> bool:
    """Return true if a process still has the liveness descriptor of this session."""
    return live.holder(_INHERITED + session) is not None


def open_inherited_lock(live: LockFile, session: int) -> int:
    """Return the session's liveness descriptor: the session counts as alive while any process has it open.

    This process must not close it before it ends: closing any descriptor of the file drops the POSIX locks that the
    process has on it.
    """
    key = (live.device, live.inode, session)
    if key in _inherited_locks:
        return _inherited_locks[key]
    command = getattr(fcntl, "F_OFD_SETLK", None)
    if command is None:
        raise InvalidConfig("url", live.path, "this system has no locks that a child process can inherit")

    descriptor = os.open(live.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    if os.fstat(descriptor).st_ino != live.inode:
        raise Unavailable("sqlite", UnavailableReason.REPLACED, f"{live.path} is no longer the file that was opened")
    fcntl.fcntl(descriptor, command, struct.pack(_LINUX, fcntl.F_WRLCK, os.SEEK_SET, _INHERITED + session, 1, 0))
    _inherited_locks[key] = descriptor
    return descriptor
