"""Files that exist to be locked: opened once per process, closed only when nobody in it has any use for them.

POSIX locks belong to the process and fall when *any* descriptor of the file is closed; so there is one descriptor per
file (found by device and inode), and it stays for as long as a database uses it or a byte of it is locked. They are not
inherited by a forked child, which is why they are used: a child that lives on must not keep a dead parent's locks.
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

from holdfast.errors import Unavailable
from holdfast.observer import log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MODE = 0o600
STALL_S = 5.0
_SLOW_S = 1.0
_SAY_S = 0.005
_TRIES = 20
_NAP_S = 0.00005
_ASIDE_S = 0.0001
_LOOK_EVERY = 4
_SOMEBODY, _NOBODY = b"1", b"0"
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB

# struct flock: the fields and their order differ between the kernels.
_LINUX = "hhqqi4x"
_DARWIN = "qqihh"


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
        """Without a lock. Also in a child: they stayed with the parent, and so did the thread that has the mutex."""
        # It knows its owner, so that whoever was interrupted between two lines can find out whether he has it:
        # `mine_now` tells whether this very thread does, as threading.Condition asks it.
        self.mutex = threading.RLock()
        self.mine_now: Callable[[], bool] = self.mutex._is_owned  # type: ignore[attr-defined]  # noqa: SLF001
        self.mine: set[int] = set()
        self._turn: _Turn | None = None
        self.in_queue: set[_Turn] = set()
        self._passes = 0

    def close_if_idle(self) -> bool:
        """Close it, if no database uses it, no byte of it is locked and no thread queues for one."""
        if self.users or self.mine or self.in_queue:
            return False
        os.close(self.descriptor)
        return True

    def lock(self, byte: int) -> bool:
        """Lock one byte for this process, without waiting."""
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
        """The pid of the process that has this byte locked, or `None`; 0 where its pid cannot be seen from here."""
        if byte in self.mine:
            return os.getpid()
        if sys.platform == "darwin":
            ask = struct.pack(_DARWIN, byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
            answer = struct.unpack(_DARWIN, fcntl.fcntl(self.descriptor, fcntl.F_GETLK, ask))
            kind, pid = answer[3], answer[2]
        else:
            ask = struct.pack(_LINUX, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
            answer = struct.unpack(_LINUX, fcntl.fcntl(self.descriptor, fcntl.F_GETLK, ask))
            kind, pid = answer[0], answer[4]
        return None if kind == fcntl.F_UNLCK else max(0, pid)

    def take_mutex(self, until_s: float) -> None:
        """The mutex, but not for ever: whoever has it may be waiting for a process that does not move."""
        if not self.mutex.acquire(timeout=max(0.0, until_s - time.monotonic())):
            raise self._stalled()

    def _stalled(self) -> Unavailable:
        pid = self.holder(0)
        beside = pid is None and not self.mine_now()  # the gate is open: a thread of ours reads at length
        who = "another thread of this process" if beside else f"process {pid}"
        return Unavailable("sqlite", "stalled", f"{who} has been inside the gate of {self.path} for too long")

    def enter(self, until_s: float) -> None:
        """Lock byte 0 for this process; `Unavailable` names whoever does not move. The caller has the mutex.

        A few quick tries come first, since the gate is held for microseconds. Then it is the kernel's queue, which is
        fair but cannot be left; so a thread stands in it, and gives the lock back if its caller has gone.
        """
        for attempt in range(_TRIES):
            if self.lock(0):
                return
            self._say_that_somebody_waits()
            if attempt < _TRIES // 2:
                _let_others_run()
            else:
                time.sleep(_NAP_S)
        if time.monotonic() < until_s and self._enter_in_turn(until_s):
            self.mine.add(0)
            return
        raise self._stalled()

    def leave(self) -> None:
        """Unlock byte 0; may be said twice."""
        self.unlock(0)

    def step_aside(self) -> None:
        """After leaving: a moment for whoever waits, now and then.

        The kernel wakes the first in its queue, but does not keep the lock for it: a process that runs would be back
        before one that has to be woken is there, and on a busy machine that would go on and on.
        """
        self._passes += 1
        if self._passes % _LOOK_EVERY:
            return
        with contextlib.suppress(OSError):  # as below: the work is done, and a hint must not fail it
            if os.pread(self.descriptor, 1, 0) == _SOMEBODY:
                os.pwrite(self.descriptor, _NOBODY, 0)
                time.sleep(_ASIDE_S)

    def _say_that_somebody_waits(self) -> None:
        with contextlib.suppress(OSError):  # a full disk; it is only a hint
            os.pwrite(self.descriptor, _SOMEBODY, 0)

    def _enter_in_turn(self, until_s: float) -> bool:
        told = False
        began_s = time.monotonic()
        try:
            turn = self._turn
            if turn is None or not turn.resume():
                turn = self._turn = _Turn(self)
                turn.begin()
            while (left_s := until_s - time.monotonic()) > 0:
                if turn.come.wait(min(_SAY_S, left_s)):
                    return turn.take()
                self._say_that_somebody_waits()
                if not told and time.monotonic() - began_s >= _SLOW_S:
                    told = True
                    log.warning("waiting for the gate %s, held by process %s", self.path, self.holder(0))
        except BaseException:
            # Interrupted anywhere in here: nobody may stay in the queue on behalf of nobody.
            if self._turn is not None:
                self._turn.abandon()
                self._turn = None
            raise
        return turn.abandon()


class _Turn:
    """A thread in the kernel's queue for byte 0, on behalf of whichever thread of the process has the mutex."""

    def __init__(self, file: LockFile) -> None:
        self.come = threading.Event()
        self._file = file
        self._guard = threading.Lock()
        self._state = "wanted"

    def begin(self) -> None:
        self._file.in_queue.add(self)
        threading.Thread(target=self._stand, name="holdfast-gate", daemon=True).start()

    def _stand(self) -> None:
        try:
            self._queue()
        finally:
            self._file.in_queue.discard(self)

    def _queue(self) -> None:
        try:
            fcntl.lockf(self._file.descriptor, fcntl.LOCK_EX, 1, 0)
        except OSError:  # the kernel suspects a deadlock between two gates; whoever waits will try again
            self._state = "failed"
            self.come.set()
            return
        with self._guard:
            unwanted = self._state == "abandoned"
            self._state = "over" if unwanted else "come"
        if unwanted:
            # Another thread of this process may be inside by now, and the lock is the process's: only under the
            # mutex is it certain that nobody is.
            with self._file.mutex:
                fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN, 1, 0)
        self.come.set()

    def take(self) -> bool:
        return self._state == "come"

    def abandon(self) -> bool:
        """Nobody waits any more. True if the lock came at the last moment: then it is the caller's."""
        with self._guard:
            if self._state == "wanted":
                self._state = "abandoned"
            return self._state == "come"

    def resume(self) -> bool:
        """Somebody waits again, on the same place in the queue; false if that place is used up."""
        with self._guard:
            if self._state == "abandoned":
                self._state = "wanted"
            return self._state == "wanted"


def _let_others_run() -> None:
    if hasattr(os, "sched_yield"):
        os.sched_yield()
    else:
        time.sleep(0)


_files: dict[tuple[int, int], LockFile] = {}
_files_lock = threading.Lock()


def open_lockfile(path: Path, user: object) -> LockFile:
    """This process's one handle on the file, for as long as this user lives."""
    with _files_lock:
        file = _find_or_open(path)
        file.users.add(user)
        return file


def _find_or_open(path: Path) -> LockFile:
    # A look comes before the opening, because a second descriptor could not be closed without losing locks.
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
