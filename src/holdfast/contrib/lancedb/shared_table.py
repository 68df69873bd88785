"""The objects that all users of one table in this process share: client, writer lock, write queue, cached schema.

The rule: there is one `SharedTable` per table and process, however often it is opened. The last user that leaves closes
it, after all queued writes are done. A later user gets a new one.
"""

from __future__ import annotations

import atexit
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lance

from holdfast._lazy import Requires
from holdfast.blocking import connect
from holdfast.contrib.lancedb import writing
from holdfast.contrib.lancedb.maintenance import Maintenance
from holdfast.contrib.lancedb.settings import default_url
from holdfast.contrib.lancedb.write_queue import WriteQueue
from holdfast.contrib.lancedb.writer_lock import WriterLock
from holdfast.errors import InvalidConfig
from holdfast.observer import log

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.contrib.lancedb.settings import StoreSettings
    from holdfast.observer import Observer

_EXIT_S = 5.0
_MOMENT_S = 1.0
Key = tuple[int, int, str]


class StoreStatus(NamedTuple):
    """The state of a store, for people: this process's use of it, and its problems."""

    mode: str
    url: str
    users: int
    acquisitions: int
    waiting: int
    blocked: int
    full_text: str
    degraded: int
    foreign_commits: int
    maintenance_runs: int
    trouble: str


class FullText:
    """Whether full-text search works. Keeps the last failure, and counts the searches that went without it."""

    def __init__(self) -> None:
        self.state = "unknown"
        self.degraded = 0

    def ready(self) -> None:
        self.state = "ready"

    def failed(self, error: BaseException) -> None:
        self.state = f"failed: {error}"
        log.warning("holdfast: the full-text index failed, searches use vectors only: %s", error)

    def went_without(self, error: BaseException) -> None:
        """Count a search without full text, and log each one, because a reader of the log may miss a single line."""
        self.degraded += 1
        if not self.state.startswith("failed"):
            self.state = f"failed: {error}"
        log.warning("holdfast: a search used vectors only (%s so far): %s", self.degraded, error)


class SharedTable:
    """The shared objects of one table."""

    def __init__(self, directory: Path, table: str, settings: StoreSettings, observer: Observer | None) -> None:
        self.directory = directory
        self.name = table
        self.settings = settings
        self.users = 0
        self.text = FullText()
        self._schema: pa.Schema | None = None
        self._table: Any = None
        self._guard = threading.Lock()
        self._client = None if settings.url is None else connect(str(settings.url), observer=observer)
        try:
            self.writer_lock = WriterLock(self._client, directory, table, ttl=settings.ttl, timeout=settings.timeout)
        except BaseException:
            self._close_client(0)
            raise
        self.maintenance = Maintenance(settings.schedule, fold_after=settings.fold_after)
        self.write_queue = WriteQueue(
            self.writer_lock,
            self.maintenance,
            batch=settings.batch,
            queue=settings.queue,
            window_s=settings.window,
            hold_s=settings.hold,
        )

    def schema(self, *, refresh: bool = False) -> pa.Schema:
        """Return the columns of the table, cached; `refresh` reads them again."""
        if refresh or self._schema is None:
            self._schema = lance.dataset(self.writer_lock.uri).schema
        return self._schema

    def catch_up(self) -> None:
        """Let the writing thread index the rows that were added while no process updated the indices."""
        behind = writing.unindexed(self.writer_lock.uri)
        if behind >= self.settings.fold_after:
            self.maintenance.count(behind)
            self.write_queue.wake()

    def table(self) -> Any:
        """Return LanceDB's own table, for reads. The settings say how soon it sees the commits of other processes."""
        with self._guard:
            if self._table is None:
                with Requires("holdfast-lancedb", "lancedb", "lance", "pyarrow"):
                    import lancedb  # noqa: PLC0415 - takes four times as long to import as the rest; only searches need it

                self._table = lancedb.connect(str(self.directory), **self.reading()).open_table(self.name)
            return self._table

    def reading(self) -> dict[str, Any]:
        """Return the arguments for LanceDB's `connect`."""
        return {"read_consistency_interval": timedelta(seconds=self.settings.read_consistency)}

    def status(self) -> StoreStatus:
        return StoreStatus(
            self.settings.mode,
            self.settings.shown,
            self.users,
            self.writer_lock.acquisitions,
            self.write_queue.waiting,
            self.write_queue.blocked,
            self.text.state,
            self.text.degraded,
            self.write_queue.foreign_commits,
            self.maintenance.runs,
            self.maintenance.trouble,
        )

    def close(self, timeout_s: float | None) -> None:
        """Do the queued writes, then close the client. Writes left after the timeout get `Closed`: nothing changed."""
        drained = self.write_queue.close(timeout_s)
        self._close_client(None if drained else 0)  # ends a wait for the lease
        # A write in progress continues and its caller gets the answer; but do not wait for a change that never ends.
        self.write_queue.wait_ended(_MOMENT_S)

    def _close_client(self, timeout_s: float | None) -> None:
        if self._client is not None:
            self._client.close(timeout_s)


_shared_tables: dict[Key, SharedTable] = {}
_guard = threading.Lock()
_exits = threading.Event()


def join(directory: Path, table: str, settings: StoreSettings, observer: Observer | None) -> SharedTable:
    """Return the shared table with one user more; create it for the first."""
    with _guard:
        key = _key(directory, table)
        shared = _shared_tables.get(key)
        if shared is None:
            shared = _shared_tables[key] = SharedTable(directory, table, settings, observer)
            if not _exits.is_set():
                _exits.set()
                atexit.register(_close_all)
                os.register_at_fork(after_in_child=_forked)
        elif shared.settings != settings and _without_path(shared.settings, shared.directory) != _without_path(
            settings, directory
        ):
            rule = f"this process has opened it with other settings: {shared.settings}"
            raise InvalidConfig("store", str(directory), rule)
        shared.users += 1
        return shared


def leave(shared: SharedTable, timeout_s: float | None) -> None:
    """Remove one user; the last one closes the shared table."""
    with _guard:
        shared.users -= 1
        if shared.users:
            return
        for key in [key for key, each in _shared_tables.items() if each is shared]:
            del _shared_tables[key]
    shared.close(timeout_s)


def _without_path(settings: StoreSettings, directory: Path) -> StoreSettings:
    """Return the settings without the default URL: it has the path by which the caller came, such as a link."""
    return settings._replace(url=None) if settings.url == default_url(settings.mode, directory) else settings


def _key(directory: Path, table: str) -> Key:
    """Return a key that is the same for every path to the directory."""
    try:
        found = os.stat(directory)
    except OSError as error:
        missing = f"{error.strerror}; the library does not create it: create or mount it first"
        raise InvalidConfig("directory", str(directory), missing) from error
    return found.st_dev, found.st_ino, table


def _forked() -> None:
    """Forget the shared tables in a child process, and replace the lock that its parent may have held."""
    global _guard  # noqa: PLW0603 - there is one list of shared tables
    _guard = threading.Lock()
    _shared_tables.clear()


def _close_all() -> None:
    """Finish the queued writes at the end of the program, for a few seconds at most."""
    with _guard:
        left = list(_shared_tables.values())
        _shared_tables.clear()
    for shared in left:
        shared.close(_EXIT_S)
