"""One SQLite file in one process: the connection, the gate, and what happens at a fork.

Every transaction runs behind the gate, a lock on one byte of a file beside the database. Writers wait for the gate in
the kernel, where SQLite alone would let them poll and starve; and no commit can meet another process's checkpoint.
A process has one connection per file, and uses it under the gate's mutex.
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
from holdfast.engines.sqlite import location, schema
from holdfast.engines.sqlite.process_locks import STALL_S, Gate, LiveFile, SqliteLocks, open_lockfile
from holdfast.errors import InvalidConfig, Unavailable, UnavailableReason
from holdfast.host import unavailable_error
from holdfast.interrupts import raise_if_of_signal, suppress_unless_signal
from holdfast.shared_files import UntrustedFile, make_path

T = TypeVar("T")

_OLDEST = (3, 24, 0)
_BUSY_MS = 2000
_LOG_PAGES = 2000

# A part of SQLite's message, and the `Unavailable.reason` for it.
_REASONS = (
    ("full", "full"),
    ("readonly", "read-only"),
    ("unable to open", "unreachable"),
    ("locked", "stalled"),
    ("malformed", "corrupt"),
    ("not a database", "corrupt"),
)


def _no_heartbeat() -> None:
    """Do nothing: the caller has no session."""


class Database:
    """This process's one connection to the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = str(path)
        self._cursor: sqlite3.Cursor | None = None
        self._locks: SqliteLocks | None = None
        self._file = (0, 0)
        self._users = 0
        try:
            self.folder = make_path(path.parent)
            location.refuse_network(path.parent)
            self._check_files()
            schema.refuse_other_layout(path)
            self.gate = open_lockfile(self.folder, f"{path.name}.gate", self, Gate)
            self.live = open_lockfile(self.folder, f"{path.name}.live", self, LiveFile)
        except OSError as error:
            raise unavailable_error("sqlite", error) from error
        _alive.add(self)

    def transact(self, work: Callable[..., T], until_ns: int | None = None, *details: object) -> T:
        """Run `work(cursor, *details)` in one transaction behind the gate, and return its result."""
        result: T = self.behind_gate(in_transaction, until_ns, work, *details)
        return result

    def behind_gate(
        self,
        work: Callable[..., T],
        until_ns: int | None,
        *details: object,
        heartbeat: Callable[[], None] = _no_heartbeat,
    ) -> T:
        """Run `work(cursor, *details)` behind the gate; `work` begins and ends its transactions itself.

        An exception, even one that a signal handler raises between two lines, leaves no open transaction and keeps
        neither the gate nor its mutex: `_clean_up` runs twice, and the second run may find nothing to do. `heartbeat`
        is called again and again during a wait for the gate.
        """
        if self.gate.mine_now():
            raise Unavailable(
                "sqlite",
                UnavailableReason.STALLED,
                "this thread is inside a command already: a signal handler sent another one",
            )
        try:
            try:
                self._enter(until_ns, heartbeat)
                return self._inside(work, *details)
            finally:
                self._clean_up()
        except BaseException as error:
            self._clean_up()
            if isinstance(error, sqlite3.Error):
                raise self._unavailable(error) from error
            raise

    def _enter(self, until_ns: int | None, heartbeat: Callable[[], None]) -> None:
        """Take the mutex and the gate. Both are usually free, so compute the time limit only before a wait."""
        gate, until_s = self.gate, 0.0
        if not gate.mutex.acquire(blocking=False):
            until_s = _bound_s(until_ns)
            gate.take_mutex(until_s, heartbeat)
        if not gate.try_enter():
            gate.enter(until_s or _bound_s(until_ns), heartbeat)

    def _inside(self, work: Callable[..., T], *details: object) -> T:
        cursor = self._cursor
        if cursor is None:
            cursor = self._open()
        elif self._identity() != self._file:
            self._refuse_replaced()
        return work(cursor, *details)

    def _clean_up(self) -> None:
        if not self.gate.mine_now():
            return
        if self._cursor is not None and self._cursor.connection.in_transaction:
            self._cursor.connection.rollback()
        self.gate.leave()
        self.gate.mutex.release()
        self.gate.step_aside()

    def _refuse_replaced(self) -> NoReturn:
        """Raise `Unavailable`: clients that connect from now on open the new file; leases in the old file are lost."""
        if _databases.get(self._name) is self:
            del _databases[self._name]
        raise Unavailable("sqlite", UnavailableReason.REPLACED, f"{self.path} is no longer the file that was opened")

    def _open(self) -> sqlite3.Cursor:
        try:
            # Create the file here, with its mode: SQLite gives its log and its shared memory the same mode as the file.
            with contextlib.suppress(FileExistsError):
                os.close(self.folder.create(self.path.name))
            return self._connect(self._check_files())
        except OSError as error:
            raise unavailable_error("sqlite", error) from error

    def _check_files(self) -> tuple[int, int]:
        """Raise `OSError` if another user planted the database or one of SQLite's own files; return its identity.

        SQLite opens them by path, and would apply the content of a planted log.
        """
        found = {}
        for suffix in ("", "-journal", "-wal", "-shm", ".gate", ".live"):
            with contextlib.suppress(FileNotFoundError):
                name = f"{self.path.name}{suffix}"
                found[suffix] = status = self.folder.status(name)
                self.folder.check(name, status)
        return found[""][1:3] if "" in found else (0, 0)

    def _connect(self, identity: tuple[int, int]) -> sqlite3.Cursor:
        """Open the connection; refuse any file but the one that was checked."""
        connection = sqlite3.connect(self.path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False)
        try:
            cursor = connection.cursor()  # one for all commands: a new cursor costs more than some statements
            cursor.execute("PRAGMA page_size = 1024")  # for a new file: a command writes one page, or a few
            cursor.execute("PRAGMA journal_mode = WAL")
            cursor.execute("PRAGMA synchronous = NORMAL")
            cursor.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
            schema.prepare(cursor, self.path)
            self._locks = SqliteLocks(self.folder, self.path.name)
            if not identity == self._check_files() == self._identity():
                self._locks.close()
                what = "another process replaced the database while this process opened it"
                raise UntrustedFile(self._name, f"{what}; connect again, and check who can write to the directory")
        except BaseException:
            connection.close()  # closing rolls back the open transaction
            raise
        self._file = identity
        self._cursor = cursor
        return cursor

    def _identity(self) -> tuple[int, int]:
        try:
            return os.stat(self._name)[1:3]  # inode and device
        except OSError as error:
            raise_if_of_signal(error)
            return (0, 0)

    def _unavailable(self, error: sqlite3.Error) -> Unavailable:
        text = str(error)
        reason = next((word for sign, word in _REASONS if sign in text), "") or location.disk_reason(self.path, error)
        if reason in ("corrupt", "failed"):
            text = f"{self.path}: {text}" if str(self.path) not in text else text
            text += f"; to start again, stop every user of {self.path} and move it away with its -wal and -shm files"
        return Unavailable("sqlite", reason, text)

    def pipe(self, session: int) -> str:
        """Return the name of the pipe through which a session is woken."""
        return f"{self.path.name}.wake.{session}"

    def remove_pipe(self, session: int) -> None:
        """Remove the pipe of a dead session, if this user may."""
        with suppress_unless_signal(OSError):
            self.folder.remove(self.pipe(session))

    def enter(self) -> Database:
        """Count one more client of this process, and return the database."""
        with self.gate.mutex:
            if not self.folder.close.alive:  # the last client before this one has left
                self.folder = make_path(self.path.parent)
            self._users += 1
        return self

    def leave(self) -> None:
        """Count one client less; the last one closes the connection, which empties the log."""
        with self.gate.mutex:
            self._users -= 1
            if self._users == 0:
                self._close_behind_gate()
                self.folder.close()

    def before_fork(self) -> None:
        """Close the connection: a child would inherit SQLite's own table of locks, but not the kernel's locks."""
        if self._cursor is not None:
            self._close_behind_gate()

    def _close_behind_gate(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is None:
            return
        try:
            with contextlib.suppress(Unavailable):
                self.gate.enter(time.monotonic() + STALL_S, _no_heartbeat)
            if self._locks is not None:
                self._locks.unlock()  # the last connection to the file deletes the log
            cursor.connection.close()
        finally:
            if self._locks is not None:
                self._locks.close()
            self.gate.leave()


def in_transaction(cursor: sqlite3.Cursor, work: Callable[..., T], *details: object) -> T:
    """Run `work(cursor, *details)` in one transaction: all of it or nothing."""
    cursor.execute("BEGIN IMMEDIATE")
    result = work(cursor, *details)
    failpoints.point("sqlite.before-commit")
    cursor.execute("COMMIT")
    failpoints.point("sqlite.after-commit")
    return result


def _bound_s(until_ns: int | None) -> float:
    """Return until when to wait for the gate, on the clock of `time.monotonic`."""
    now_s = time.monotonic()
    if until_ns is None:
        return now_s + STALL_S
    return now_s + min(STALL_S, (until_ns - SYSTEM.now_ns()) / 1e9)


_databases: weakref.WeakValueDictionary[str, Database] = weakref.WeakValueDictionary()
_alive: weakref.WeakSet[Database] = weakref.WeakSet()
_databases_lock = threading.Lock()
_fork_locks: list[threading.RLock] = []


def open_database(path: Path) -> Database:
    """Return this process's handle on the file, the same one for every path that leads to the file."""
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


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
