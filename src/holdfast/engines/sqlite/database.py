"""One SQLite file in one process: the connection, the gate, and what happens at a fork.

Every transaction runs behind the gate, a lock on one byte of a file beside the database. The gate queues writers in
the kernel, where SQLite alone would let them poll and starve; and no commit can meet another process's checkpoint.
There is one connection per process and file, used under the gate's mutex.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from holdfast import failpoints
from holdfast.clock import SYSTEM
from holdfast.engines.sqlite import location as place
from holdfast.engines.sqlite import schema as layout
from holdfast.engines.sqlite.process_locks import STALL_S, open_lockfile
from holdfast.errors import InvalidConfig, Unavailable

T = TypeVar("T")

_OLDEST = (3, 24, 0)
_BUSY_MS = 2000
_LOG_PAGES = 2000

# What SQLite says, and the word for it in `Unavailable.reason`.
_REASONS = (
    ("full", "full"),
    ("readonly", "read-only"),
    ("unable to open", "unreachable"),
    ("locked", "stalled"),
    ("malformed", "corrupt"),
    ("not a database", "corrupt"),
)


class Database:
    """This process's one way into the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = str(path)
        self._link: sqlite3.Cursor | None = None
        self._file = (0, 0)
        self._users = 0
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.refuse_network(path.parent)
            self.gate = open_lockfile(Path(f"{path}.gate"), self)
            self.live = open_lockfile(Path(f"{path}.live"), self)
        except OSError as error:
            raise Unavailable("sqlite", place.trouble(error), str(error)) from error
        _alive.add(self)

    def transact(self, work: Callable[..., T], until_ns: int | None = None, *details: object) -> T:
        """Run `work` in one transaction behind the gate: with the cursor, and with these details."""
        result: T = self.behind_gate(in_transaction, until_ns, work, *details)
        return result

    def behind_gate(self, work: Callable[..., T], until_ns: int | None, *details: object) -> T:
        """Run `work` behind the gate; where its transactions begin and end is its own affair.

        An exception, even one that a signal handler raises between two lines, leaves neither a transaction nor the
        gate nor its mutex behind: `_calm` may be said twice, and is.
        """
        if self.gate.mine_now():
            raise Unavailable("sqlite", "stalled", "this thread is inside a command already: a signal handler asked")
        try:
            try:
                self._enter(until_ns)
                return self._inside(work, *details)
            finally:
                self._calm()
        except BaseException as error:
            self._calm()
            if isinstance(error, sqlite3.Error):
                raise self._unavailable(error) from error
            raise

    def _enter(self, until_ns: int | None) -> None:
        """The mutex and the gate; both are mostly free, and only who has to wait asks for how long."""
        gate, until_s = self.gate, 0.0
        if not gate.mutex.acquire(blocking=False):
            until_s = _bound_s(until_ns)
            gate.take_mutex(until_s)
        if not gate.lock(0):
            gate.enter(until_s or _bound_s(until_ns))

    def _inside(self, work: Callable[..., T], *details: object) -> T:
        link = self._link
        if link is None:
            link = self._open()
        elif self._identity() != self._file:
            self._refuse_stranger()
        return work(link, *details)

    def _calm(self) -> None:
        if not self.gate.mine_now():
            return
        if self._link is not None and self._link.connection.in_transaction:
            self._link.connection.rollback()
        self.gate.leave()
        self.gate.mutex.release()
        self.gate.step_aside()

    def _refuse_stranger(self) -> NoReturn:
        """Whoever connects from now on gets the file that is there; whoever held a lease here has lost it."""
        if _databases.get(self._name) is self:
            del _databases[self._name]
        raise Unavailable("sqlite", "replaced", f"{self.path} is no longer the file that was opened")

    def _open(self) -> sqlite3.Cursor:
        # Made here and not by SQLite, whose log and shared memory take over the rights of the file.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self.path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False)
        try:
            link = connection.cursor()  # one for all: a new one for each statement costs more than some of them
            link.execute("PRAGMA page_size = 1024")  # of a new file: a command writes one page, or a few
            link.execute("PRAGMA journal_mode = WAL")
            link.execute("PRAGMA synchronous = NORMAL")
            link.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
            layout.prepare(link, self.live)
        except BaseException:
            connection.close()  # which rolls back what it had begun
            raise
        self._file = self._identity()
        self._link = link
        return link

    def _identity(self) -> tuple[int, int]:
        try:
            return os.stat(self._name)[1:3]  # inode and device
        except OSError:
            return (0, 0)

    def _unavailable(self, error: sqlite3.Error) -> Unavailable:
        text = str(error)
        reason = next((word for sign, word in _REASONS if sign in text), "failed")
        if reason in ("corrupt", "failed"):
            text = f"{self.path}: {text}" if str(self.path) not in text else text
            text += f"; to start anew, stop every user of {self.path} and move it away with its -wal and -shm files"
        return Unavailable("sqlite", reason, text)

    def enter(self) -> Database:
        """One more client of this process uses the file."""
        with self.gate.mutex:
            self._users += 1
        return self

    def leave(self) -> None:
        """One client less; the last one closes the connection, which tidies up the log."""
        with self.gate.mutex:
            self._users -= 1
            if self._users == 0:
                self._close_behind_gate()

    def before_fork(self) -> None:
        """No SQLite state may cross a fork: its lock table would, and the kernel's locks would not."""
        if self._link is not None:
            self._close_behind_gate()

    def _close_behind_gate(self) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        try:
            with contextlib.suppress(Unavailable):
                self.gate.enter(time.monotonic() + STALL_S)
            link.connection.close()
        finally:
            self.gate.leave()


def in_transaction(link: sqlite3.Cursor, work: Callable[..., T], *details: object) -> T:
    """All of it or nothing."""
    link.execute("BEGIN IMMEDIATE")
    result = work(link, *details)
    failpoints.point("sqlite.before-commit")
    link.execute("COMMIT")
    failpoints.point("sqlite.after-commit")
    return result


def _bound_s(until_ns: int | None) -> float:
    """Until when to wait for the gate, on the clock of sleeps."""
    now_s = time.monotonic()
    if until_ns is None:
        return now_s + STALL_S
    return now_s + min(STALL_S, (until_ns - SYSTEM.now_ns()) / 1e9)


_databases: weakref.WeakValueDictionary[str, Database] = weakref.WeakValueDictionary()
_alive: weakref.WeakSet[Database] = weakref.WeakSet()
_databases_lock = threading.Lock()
_fork_locks: list[threading.RLock] = []


def open_database(path: Path) -> Database:
    """This process's handle on the file, whichever of its paths was named."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise InvalidConfig("sqlite", sqlite3.sqlite_version, "holdfast needs SQLite 3.24 or newer")
    real = Path(os.path.realpath(path))
    with _databases_lock:
        database = _databases.get(str(real))
        if database is None:
            database = _databases[str(real)] = Database(real)
        return database


def _before_fork() -> None:
    _databases_lock.acquire()
    databases = list(_alive)
    # Two databases may share a gate: each mutex once.
    _fork_locks[:] = {id(one.gate): one.gate.mutex for one in databases}.values()
    for lock in _fork_locks:
        lock.acquire()
    for database in databases:
        database.before_fork()


def _after_fork_in_parent() -> None:
    for lock in _fork_locks:
        lock.release()
    _fork_locks.clear()
    _databases_lock.release()


def _after_fork_in_child() -> None:
    global _databases_lock  # noqa: PLW0603
    _databases_lock = threading.Lock()
    _fork_locks.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
