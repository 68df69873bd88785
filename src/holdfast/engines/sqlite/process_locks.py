"""Lock files: the gate that transactions pass one at a time, and the live file that proves which sessions live.

The locks are open-file-description locks (`F_OFD_SETLK`): a lock belongs to the descriptor that took it. POSIX locks
belong to the process, and the kernel drops them when the process closes *any* descriptor of the file: a backup or a
checksum that merely reads the live file would make its own process look dead. And a process does not see its own POSIX
locks, so that two copies of this package in one process would not respect each other.

A forked child shares the descriptors of its parent, and with them the locks. A child that outlives its parent must not
keep the dead parent's locks, so the child closes these descriptors at once, and opens the files again when it needs
them.

Where a system has no such locks, POSIX locks take their place. Then there must be one descriptor per file and process,
which stays open for as long as a database uses the file or a byte of it is locked; the promise of the engine has a
caveat about the rest.

The death of a parent must not free a lease under which its child still works, if the child has the session's liveness
descriptor. That descriptor locks a second byte of the live file, and child processes inherit it: the kernel drops the
lock when the last process that has it ends. A session is dead when both bytes are free.

No descriptor can lead from the watcher of a shell script to the script, which started before it. The watcher's session
writes until when its leases last in place of its heartbeat, as a negative number, and does not count as dead before.
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
from typing import TYPE_CHECKING, TypeVar

from holdfast import failpoints
from holdfast.clock import NS_PER_US, SYSTEM
from holdfast.errors import InvalidConfig, Unavailable, UnavailableReason
from holdfast.host import start_thread
from holdfast.interrupts import raise_if_of_signal, suppress_unless_signal
from holdfast.observer import log
from holdfast.shared_files import Folder

if TYPE_CHECKING:
    from collections.abc import Callable

STALL_S = 5.0
_SLOW_S = 1.0
_ANNOUNCE_S = 0.005
_TRIES = 20
_NAP_S = 0.00005
_ASIDE_S = 0.0001
_LOOK_EVERY = 4
# How long a process waits for its turn before it enters a free gate out of turn, and how long it then goes on to do so
# without waiting.
_PATIENCE_S = 0.1
_OUT_OF_TURN_S = 1.0
_WAITERS, _NO_WAITERS = b"1", b"0"
# How many sessions can live at once: the heartbeats of all fill half a mebibyte.
PLACES = 65_536
_HEARTBEAT = struct.Struct("<q")
_HEARTBEAT_EVERY_US = 1_000_000

# Whether a lock belongs to the descriptor that took it, and not to the process.
BY_DESCRIPTOR = hasattr(fcntl, "F_OFD_SETLK")
_QUERY, _TRY, _WAIT = (
    (fcntl.F_OFD_GETLK, fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW)
    if BY_DESCRIPTOR
    else (fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW)
)

# The inheritable byte of a session lies far beyond any number that a session will ever have.
_INHERITED = 1 << 40


def _request(kind: int, start: int, length: int = 1) -> bytes:
    """Return a `struct flock`: its fields and their order differ between the kernels."""
    if sys.platform == "darwin":
        return struct.pack("qqihh", start, length, 0, kind, os.SEEK_SET)
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)


def _found(answer: bytes) -> tuple[int, int]:
    """Return the kind of the lock that a query found, and the pid of its process; -1 if the lock has no process."""
    if sys.platform == "darwin":
        _, _, pid, kind, _ = struct.unpack("qqihh", answer)
    else:
        kind, _, _, _, pid = struct.unpack("hhqqi4x", answer)
    return kind, pid


# The gate has two bytes. A process is inside while it has locked the second one; the first one is the turn, for which
# processes wait in the kernel. A process that the kernel gives the turn while it is suspended so keeps no other out.
_TURN, _INSIDE = 0, 1
_LOCK_GATE, _UNLOCK_GATE = _request(fcntl.F_WRLCK, _TURN, 2), _request(fcntl.F_UNLCK, _TURN, 2)
_LOCK_TURN, _UNLOCK_TURN = _request(fcntl.F_WRLCK, _TURN), _request(fcntl.F_UNLCK, _TURN)
_LOCK_INSIDE = _request(fcntl.F_WRLCK, _INSIDE)


class LockFile:
    """One file, its one descriptor in this process, and the bytes of it that this process has locked."""

    def __init__(self, directory: str, name: str) -> None:
        self.directory, self.name = directory, name
        self.path = f"{directory}/{name}"
        self.descriptor = -1
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self.begin()
        self.open()

    def begin(self) -> None:
        """Start without a lock."""
        self.mine: set[int] = set()

    def open(self) -> None:
        """Open the file."""
        with Folder(self.directory, private=True) as folder:
            descriptor = folder.open_or_create(self.name)
        status = os.fstat(descriptor)
        self.device, self.inode = status.st_dev, status.st_ino
        self.descriptor = descriptor

    def forked(self) -> None:
        """In a forked child: give up the parent's descriptor, because its locks belong to the parent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1
        self.begin()

    def in_use(self) -> bool:
        """Return true if a database uses the file or a byte is locked."""
        return bool(self.users or self.mine)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def call(self, command: int, request: bytes) -> bytes:
        """Send a request about locks of this file to the kernel, and return the answer."""
        if self.descriptor < 0:
            _reopen(self)
        return fcntl.fcntl(self.descriptor, command, request)

    def set(self, request: bytes) -> bool:
        """Lock or unlock without waiting; return false if another process has a lock in the way."""
        try:
            self.call(_TRY, request)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def lock(self, byte: int) -> bool:
        """Lock one byte without waiting; return true if it is locked now."""
        if not self.set(_request(fcntl.F_WRLCK, byte)):
            return False
        self.mine.add(byte)
        return True

    def unlock(self, byte: int) -> None:
        self.mine.discard(byte)
        self.set(_request(fcntl.F_UNLCK, byte))

    def is_locked(self, byte: int) -> bool:
        """Return true if this process or another one has locked the byte."""
        return byte in self.mine or self._lock_ahead(byte) is not None

    def _lock_ahead(self, byte: int) -> int | None:
        """Return the pid of a process with a lock in the way, -1 if it is unknown, or `None` if there is no lock."""
        kind, pid = _found(self.call(_QUERY, _request(fcntl.F_WRLCK, byte)))
        return None if kind == fcntl.F_UNLCK else pid


class LiveFile(LockFile):
    """The file whose locked bytes prove that sessions live, and whose content tells that their processes run.

    A locked byte does not tell a suspended process from a running one. So a process writes the time of its last
    heartbeat into the place of its session. It needs neither the gate nor a transaction for that: on a busy
    machine a living waiter keeps its place in line, however long its commands wait for the gate.
    """

    def begin(self) -> None:
        super().begin()
        self._last_heartbeats_us: dict[int, int] = {}

    def unlock(self, byte: int) -> None:
        super().unlock(byte)
        self._last_heartbeats_us.pop(byte, None)

    def heartbeat(self, session: int) -> None:
        """Write the heartbeat of a session of this process, unless its last one is less than a second old.

        A client whose keeper has ended must lose its places in line, although other clients of its process live.
        """
        now_us = SYSTEM.now_ns() // NS_PER_US
        if now_us - self._last_heartbeats_us.get(session, 0) < _HEARTBEAT_EVERY_US:
            return
        self._last_heartbeats_us[session] = now_us
        with suppress_unless_signal(OSError):  # the disk may be full: then the session counts as suspended
            self.write_heartbeat(session, now_us)

    def write_heartbeat(self, session: int, now_us: int) -> None:
        """Write the time of a session's heartbeat; a negative one: its leases last until then, also without it."""
        os.pwrite(self.descriptor, _HEARTBEAT.pack(now_us), heartbeat_place(session) * _HEARTBEAT.size)

    def heartbeat_us(self, session: int) -> int:
        """Return when the process of this session was last seen running; 0 if that is unknown.

        The answer is negative if the leases of the session last until then, whether the process runs or not.
        """
        body = os.pread(self.descriptor, _HEARTBEAT.size, heartbeat_place(session) * _HEARTBEAT.size)
        return int(_HEARTBEAT.unpack(body)[0]) if len(body) == _HEARTBEAT.size else 0


def heartbeat_place(session: int) -> int:
    """Return the place of the session's heartbeat; two living sessions have different ones."""
    return session % PLACES


class Gate(LockFile):
    """The lock behind which all transactions of a database run, one at a time."""

    def begin(self) -> None:
        super().begin()
        # An RLock knows its thread, so that a thread that was interrupted between two lines can find out whether it has
        # the mutex: `mine_now` returns true in the thread that has it. threading.Condition uses the same method.
        self.mutex = threading.RLock()
        self.mine_now: Callable[[], bool] = self.mutex._is_owned  # type: ignore[attr-defined]  # noqa: SLF001
        self._turn: _KernelWait | None = None
        self.kernel_waits: set[_KernelWait] = set()
        self._passes = 0
        self._out_of_turn_until_s = 0.0

    def in_use(self) -> bool:
        """Return true if a database uses the gate or a thread waits for it."""
        return bool(self.users or self.kernel_waits)

    def take_mutex(self, until_s: float, heartbeat: Callable[[], None]) -> None:
        """Acquire the mutex, or raise `Unavailable` at `until_s`: its thread may wait for a suspended process.

        Call `heartbeat` again and again while waiting.
        """
        while not self.mutex.acquire(timeout=min(_SLOW_S, max(0.0, until_s - time.monotonic()))):
            heartbeat()
            if time.monotonic() >= until_s:
                raise self._stalled()

    def _stalled(self) -> Unavailable:
        return Unavailable(
            "sqlite",
            UnavailableReason.STALLED,
            f"{self._who()} has locked {self.path} for too long, in the middle of a transaction: resume or end it",
        )

    def _who(self) -> str:
        """Return who is inside the gate, for people."""
        pid = self._lock_ahead(_INSIDE)
        if pid is None:
            return "another thread of this process"
        if pid <= 0:
            pid = _find_owner(self.device, self.inode, _INSIDE)
        return f"process {pid}" if pid > 0 else "a process that is not visible from here"

    def try_enter(self) -> bool:
        """Enter the gate if it is free; return true if this process is inside now."""
        try:
            fcntl.fcntl(self.descriptor, _TRY, _LOCK_GATE)
        except (BlockingIOError, PermissionError):
            return False
        except ValueError as error:  # there is no descriptor: this is a forked child, which has not opened the file yet
            raise_if_of_signal(error)
            return self.set(_LOCK_GATE)
        return True

    def enter(self, until_s: float, heartbeat: Callable[[], None]) -> None:
        """Enter the gate, or raise `Unavailable`, which names the process that is inside.

        Call `heartbeat` again and again while waiting.

        The caller has the mutex. First make a few quick tries, because a process is inside for microseconds. Then a
        thread waits in the kernel, which is fair but cannot be interrupted; the thread gives the turn back if its
        caller has gone.
        """
        out_of_turn = time.monotonic() < self._out_of_turn_until_s
        for attempt in range(_TRIES):
            if self.try_enter() or (out_of_turn and self.set(_LOCK_INSIDE)):
                return
            self._announce_waiter()
            _pause(attempt)
        heartbeat()
        if time.monotonic() >= until_s or not self._wait_for_turn(until_s, heartbeat):
            raise self._stalled()

    def leave(self) -> None:
        """Leave the gate. A second call does nothing."""
        if self.descriptor >= 0:
            fcntl.fcntl(self.descriptor, _TRY, _UNLOCK_GATE)

    def step_aside(self) -> None:
        """After leaving, sleep for a moment now and then if another process waits.

        The kernel wakes the first waiting process, but does not reserve the lock for it: a running process would take
        the lock again before the woken one runs, and on a busy machine that would repeat without end.
        """
        self._passes += 1
        if self._passes % _LOOK_EVERY:
            return
        with suppress_unless_signal(OSError):  # the work is done, and a failed hint must not fail it
            if os.pread(self.descriptor, 1, 0) == _WAITERS:
                os.pwrite(self.descriptor, _NO_WAITERS, 0)
                time.sleep(_ASIDE_S)

    def _announce_waiter(self) -> None:
        with suppress_unless_signal(OSError):  # the disk may be full, and this is only a hint
            os.pwrite(self.descriptor, _WAITERS, 0)

    def _wait_for_turn(self, until_s: float, heartbeat: Callable[[], None]) -> bool:
        """Wait for the turn and enter; return true if this process is inside now.

        A process that was suspended just when the kernel gave it the turn is not inside, and may stay away for hours.
        So a process that has waited for a moment, and finds the gate free, enters out of turn.
        """
        logged = False
        began_s = time.monotonic()
        patient_until_s = began_s + (0 if began_s < self._out_of_turn_until_s else _PATIENCE_S)
        try:
            turn = self._line_up()
            while (left_s := until_s - time.monotonic()) > 0:
                if turn.done.wait(min(_ANNOUNCE_S, left_s)):
                    return turn.has_lock() and self._go_inside(until_s)
                now_s = time.monotonic()
                if now_s >= patient_until_s and self.set(_LOCK_INSIDE):
                    self._out_of_turn_until_s = now_s + _OUT_OF_TURN_S
                    turn.abandon()
                    return True
                self._announce_waiter()
                heartbeat()
                if not logged and now_s - began_s >= _SLOW_S:
                    logged = True
                    log.warning("waiting for the gate %s: %s is inside", self.path, self._who())
        except BaseException:
            # After an interrupt, no thread may keep waiting in the kernel for a caller that has gone.
            if self._turn is not None:
                self._turn.abandon()
                self._turn = None
            raise
        return turn.abandon() and self.set(_LOCK_INSIDE)

    def _line_up(self) -> _KernelWait:
        """Wait for the turn in the kernel: continue an earlier wait, or begin one."""
        turn = self._turn
        if turn is None or not turn.resume():
            turn = self._turn = _KernelWait(self)
            turn.begin()
        return turn

    def _go_inside(self, until_s: float) -> bool:
        """Enter with the turn: another process may be inside out of turn."""
        attempt = 0
        while not self.set(_LOCK_INSIDE):
            if time.monotonic() >= until_s:
                return False
            _pause(attempt)
            attempt += 1
        return True


class _KernelWait:
    """A thread that waits in the kernel for the turn, on behalf of the thread of this process that has the mutex."""

    def __init__(self, gate: Gate) -> None:
        self.done = threading.Event()
        self._gate = gate
        self._guard = threading.Lock()
        self._state = "wanted"

    def begin(self) -> None:
        self._gate.kernel_waits.add(self)
        try:
            start_thread(threading.Thread(target=self._run, name="holdfast-gate", daemon=True), "sqlite")
        except Unavailable:
            self._gate.kernel_waits.discard(self)
            raise

    def _run(self) -> None:
        try:
            self._lock()
        finally:
            self._gate.kernel_waits.discard(self)

    def _lock(self) -> None:
        try:
            self._gate.call(_WAIT, _LOCK_TURN)
        except OSError:  # with POSIX locks, the kernel may assume a deadlock between two gates; the caller tries again
            self._state = "failed"
            self.done.set()
            return
        failpoints.point("sqlite.gate-turn")
        with self._guard:
            unwanted = self._state == "abandoned"
            self._state = "over" if unwanted else "locked"
        if unwanted:
            # Another thread of this process may be inside the gate by now, and the lock belongs to all its threads.
            # Holding the mutex makes sure that no thread is inside.
            with self._gate.mutex:
                self._gate.set(_UNLOCK_TURN)
        self.done.set()

    def has_lock(self) -> bool:
        """Return true if the kernel granted the turn to this wait."""
        return self._state == "locked"

    def abandon(self) -> bool:
        """Stop waiting; return true if the turn came at the last moment: then the caller has it."""
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


def _pause(attempt: int) -> None:
    """Let another process run: at first only if one is ready, later for a moment of sleep."""
    if attempt < _TRIES // 2 and hasattr(os, "sched_yield"):
        os.sched_yield()
    else:
        time.sleep(_NAP_S)


def _find_owner(device: int, inode: int, byte: int) -> int:
    """Return a process whose descriptor has locked this byte of the file, or 0 if this process cannot see one.

    The kernel does not tell it with the lock, but shows the locks of every descriptor.
    """
    with suppress_unless_signal(OSError):
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with suppress_unless_signal(OSError):  # a process that ends, or one of another user
                for descriptor in os.listdir(f"/proc/{pid}/fd"):
                    status = os.stat(f"/proc/{pid}/fd/{descriptor}")
                    if (status.st_dev, status.st_ino) == (device, inode) and _has_locked(pid, descriptor, byte):
                        return int(pid)
    return 0


def _has_locked(pid: str, descriptor: str, byte: int) -> bool:
    with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as lines:
        locks = [line.split() for line in lines if line.startswith("lock:")]
    return any(int(start) <= byte and (end == "EOF" or byte <= int(end)) for *_, start, end in locks)


L = TypeVar("L", bound=LockFile)
_files: dict[tuple[int, int], LockFile] = {}
_files_lock = threading.Lock()


def open_lockfile(folder: Folder, name: str, user: object, kind: type[L]) -> L:
    """Return this process's one handle on the file, which stays open for as long as `user` lives."""
    with _files_lock:
        file = _find_or_open(folder, name, kind)
        file.users.add(user)
        return file


def _find_or_open(folder: Folder, name: str, kind: type[L]) -> L:
    # Look before opening, because closing a second descriptor would drop the process's POSIX locks.
    with contextlib.suppress(FileNotFoundError):
        status = folder.status(name)
        known = _files.get((status.st_dev, status.st_ino))
        if isinstance(known, kind):
            return known
    for key in [key for key, file in _files.items() if not file.in_use()]:
        _files.pop(key).close()
    file = kind(folder.path, name)
    _files[file.device, file.inode] = file
    return file


def _reopen(file: LockFile) -> None:
    """In a forked child: open the file again, for the child alone."""
    with _files_lock:
        if file.descriptor >= 0:
            return
        _files.pop((file.device, file.inode), None)
        file.open()
        _files[file.device, file.inode] = file


def _forget_locks() -> None:
    global _files_lock  # noqa: PLW0603
    _files_lock = threading.Lock()
    for file in _files.values():
        file.forked()


os.register_at_fork(after_in_child=_forget_locks)


class LivenessDescriptor:
    """The descriptor that keeps a session alive for as long as any process has it open.

    The garbage collector closes the descriptor of a client that was never closed.
    """

    def __init__(self, live: LockFile, session: int) -> None:
        if not BY_DESCRIPTOR:
            raise InvalidConfig("url", live.path, "this system has no locks that a child process can inherit")
        with Folder(live.directory, private=True) as folder:
            self.descriptor = folder.open(live.name, os.O_RDWR)
        self.close = weakref.finalize(self, os.close, self.descriptor)
        self.close.atexit = False
        try:
            status = os.fstat(self.descriptor)
            if (status.st_dev, status.st_ino) != (live.device, live.inode):
                detail = f"{live.path} is no longer the file that was opened"
                raise Unavailable("sqlite", UnavailableReason.REPLACED, detail)
            fcntl.fcntl(self.descriptor, _TRY, _request(fcntl.F_WRLCK, _INHERITED + session))
        except BaseException:
            self.close()
            raise


def is_alive(live: LiveFile, session: int, pid: int) -> bool:
    """Return true if a process has this session, or has inherited its liveness descriptor, or its leases outlive it.

    A process cannot see its own POSIX locks: there, a session of this process counts as alive.
    """
    if live.is_locked(session) or live.is_locked(_INHERITED + session):
        return True
    if -live.heartbeat_us(session) * NS_PER_US > SYSTEM.now_ns():
        return True
    return not BY_DESCRIPTOR and pid == os.getpid()


# SQLite's own locks are POSIX locks. These are the bytes that a connection keeps locked for as long as it is open: of
# the database, while others must not delete the log; of the shared memory, while others must not clear it.
_SQLITE_SHARED = _request(fcntl.F_RDLCK, 0x40000002, 510)
_SQLITE_SHARED_MEMORY = _request(fcntl.F_RDLCK, 128)


class SqliteLocks:
    """Locks of our own on the bytes that SQLite locks while a connection is open.

    A program that reads and closes the database, as a backup does, drops the locks of its own process's connection. The
    next process to close its connection would then delete the log, into which the first one still writes commits.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._open: list[int] = []
        self.close = weakref.finalize(self, _close_each, self._open)  # also for a client that was never closed
        self.close.atexit = False
        if not BY_DESCRIPTOR:
            return
        try:
            for file, request in ((name, _SQLITE_SHARED), (f"{name}-shm", _SQLITE_SHARED_MEMORY)):
                self._open.append(folder.open(file))
                fcntl.fcntl(self._open[-1], _TRY, request)
        except BaseException:
            self.close()
            raise

    def unlock(self) -> None:
        """Unlock, right before the connection is closed; `close` follows after that."""
        for descriptor in self._open:
            fcntl.fcntl(descriptor, _TRY, _request(fcntl.F_UNLCK, 0, 0))


def _close_each(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
