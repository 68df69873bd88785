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
from typing import TypeVar

from holdfast import pauses
from holdfast.clock import NS_PER_US, SYSTEM
from holdfast.engines.sqlite import place, rows
from holdfast.engines.sqlite.lockfile import STALL_S, open_lockfile
from holdfast.errors import InvalidConfig, Unavailable

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_OLDEST = (3, 24, 0)
_BUSY_MS = 2000
_OLD_BOOT_MEMORY_US = 60_000_000

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
        self._connection: sqlite3.Connection | None = None
        self._file = (0, 0)
        self._users = 0
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.refuse_network(path.parent)
            self.gate = open_lockfile(Path(f"{path}.gate"))
            self.live = open_lockfile(Path(f"{path}.live"))
        except OSError as error:
            raise Unavailable("sqlite", _os_reason(error), str(error)) from error
        _alive.add(self)

    def transact(self, work: Work[T], until_ns: int | None = None) -> T:
        """Run `work` in one transaction behind the gate.

        An exception, even one that a signal handler raises between two lines, leaves neither a transaction nor the
        gate nor its mutex behind: `_calm` may be said twice, and is.
        """
        until_s = time.monotonic() + STALL_S
        if until_ns is not None:
            until_s = min(until_s, time.monotonic() + (until_ns - SYSTEM.now_ns()) / 1e9)
        if self.gate.mine_now():
            raise Unavailable("sqlite", "stalled", "this thread is inside a command already: a signal handler asked")
        try:
            try:
                self.gate.take_mutex(until_s)
                self.gate.enter(until_s)
                return self._inside(work)
            finally:
                self._calm()
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        finally:
            self._calm()

    def _inside(self, work: Work[T]) -> T:
        connection = self._opened()
        connection.execute("BEGIN IMMEDIATE")
        result = work(connection)
        pauses.point("sqlite.before-commit")
        connection.execute("COMMIT")
        pauses.point("sqlite.after-commit")
        return result

    def _calm(self) -> None:
        if not self.gate.mine_now():
            return
        if self._connection is not None and self._connection.in_transaction:
            self._connection.rollback()
        self.gate.leave()
        self.gate.mutex.release()

    def _opened(self) -> sqlite3.Connection:
        """The connection, after making sure that the file is still the one it was opened on."""
        if self._connection is not None:
            if self._identity() != self._file:
                # Whoever connects from now on gets the file that is there; whoever held a lease here has lost it.
                if _databases.get(str(self.path)) is self:
                    del _databases[str(self.path)]
                raise Unavailable("sqlite", "replaced", f"{self.path} is no longer the file that was opened")
            return self._connection

        # Made here and not by SQLite, whose log and shared memory take over the rights of the file.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self.path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._file = self._identity()
        self._connection = connection
        return connection

    def _identity(self) -> tuple[int, int]:
        try:
            status = os.stat(self.path)
        except OSError:
            return (0, 0)
        return (status.st_dev, status.st_ino)

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
        if self._connection is not None:
            self._close_behind_gate()

    def _close_behind_gate(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            with contextlib.suppress(Unavailable):
                self.gate.enter(time.monotonic() + STALL_S)
            connection.close()
        finally:
            self.gate.leave()


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables, or check that they are ours; void what another boot of the machine left behind."""
    connection.execute("BEGIN IMMEDIATE")
    known = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'meta'").fetchone()[0]
    if not known:
        for statement in rows.SCHEMA.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        connection.execute("INSERT INTO meta VALUES ('layout', ?)", (str(rows.LAYOUT),))
        connection.execute("INSERT INTO meta VALUES ('boot', ?)", (place.boot_id(),))
    found = dict(connection.execute("SELECT key, value FROM meta"))
    if found.get("layout") != str(rows.LAYOUT):
        connection.execute("ROLLBACK")
        raise Unavailable(
            "sqlite", "other layout", f"layout {found.get('layout')} is not {rows.LAYOUT}: upgrade holdfast"
        )
    if found.get("boot") != place.boot_id():
        # Times of another boot mean nothing, and its processes are gone. The fences stay.
        now_us = SYSTEM.now_ns() // NS_PER_US
        rows.keep_fences_only(connection, now_us, _OLD_BOOT_MEMORY_US)
        connection.execute("DELETE FROM session")
        connection.execute("UPDATE meta SET value = ? WHERE key = 'boot'", (place.boot_id(),))
    connection.execute("COMMIT")


def _os_reason(error: OSError) -> str:
    return "read-only" if isinstance(error, PermissionError) or error.errno == 30 else "unreachable"


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
