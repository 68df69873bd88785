"""What all users of one table in this process share: the client, the gate, the line, and what is known of the table.

The rule: one desk for each table and process, however many open it. Whoever leaves does not close it for the others;
the last one does, after everything in the line was served; and whoever comes later gets a new one.
"""

from __future__ import annotations

import atexit
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lance

from holdfast.blocking import connect
from holdfast.contrib.extras import brought_by
from holdfast.contrib.lancedb import writing
from holdfast.contrib.lancedb.gate import Gate
from holdfast.contrib.lancedb.line import Line
from holdfast.contrib.lancedb.upkeep import Upkeep
from holdfast.errors import InvalidConfig
from holdfast.observer import log

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.contrib.lancedb.settings import Settings
    from holdfast.observer import Observer

_EXIT_S = 5.0
_MOMENT_S = 1.0
Key = tuple[int, int, str]


class Status(NamedTuple):
    """What is to be known of a store: of this process's part in it, and of what does not go well."""

    mode: str
    url: str
    users: int
    passed: int
    waiting: int
    outside: int
    full_text: str
    degraded: int
    overtaken: int
    maintained: int
    trouble: str


class FullText:
    """Whether text can be searched. What failed stays to be seen, and every search that went without it is counted."""

    def __init__(self) -> None:
        self.state = "unknown"
        self.degraded = 0

    def ready(self) -> None:
        self.state = "ready"

    def failed(self, error: BaseException) -> None:
        self.state = f"failed: {error}"
        log.warning("holdfast: the full-text index failed, searches go by vectors alone: %s", error)

    def went_without(self, error: BaseException) -> None:
        """A search had to do without it. Told each time: what is told once is not seen later."""
        self.degraded += 1
        if not self.state.startswith("failed"):
            self.state = f"failed: {error}"
        log.warning("holdfast: a search went by vectors alone (the %s. time): %s", self.degraded, error)


class Desk:
    """See above."""

    def __init__(self, directory: Path, table: str, settings: Settings, observer: Observer | None) -> None:
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
            self.gate = Gate(self._client, directory, table, ttl=settings.ttl, timeout=settings.timeout)
        except BaseException:
            self._close_client(0)
            raise
        self.upkeep = Upkeep(settings.schedule, fold_after=settings.fold_after)
        self.line = Line(
            self.gate,
            self.upkeep,
            batch=settings.batch,
            queue=settings.queue,
            window_s=settings.window,
            hold_s=settings.hold,
        )

    def schema(self, *, anew: bool = False) -> pa.Schema:
        """The columns of the table. Looked at once, and again where that does not suffice."""
        if anew or self._schema is None:
            self._schema = lance.dataset(self.gate.uri).schema
        return self._schema

    def catch_up(self) -> None:
        """What came while nobody folded is folded soon, by the thread that writes."""
        behind = writing.unindexed(self.gate.uri)
        if behind >= self.settings.fold_after:
            self.upkeep.count(behind)
            self.line.stir()

    def table(self) -> Any:
        """LanceDB's own table, for reads: it sees what other processes commit, as the settings say."""
        with self._guard:
            if self._table is None:
                with brought_by("lancedb", "lancedb", "lance", "pyarrow"):
                    import lancedb  # noqa: PLC0415 - four times what writing needs; paid for by those who search

                self._table = lancedb.connect(str(self.directory), **self.reading()).open_table(self.name)
            return self._table

    def reading(self) -> dict[str, Any]:
        """How LanceDB is to be connected to."""
        return {"read_consistency_interval": timedelta(seconds=self.settings.read_consistency)}

    def status(self) -> Status:
        return Status(
            self.settings.mode,
            self.settings.shown,
            self.users,
            self.gate.passed,
            self.line.waiting,
            self.line.outside,
            self.text.state,
            self.text.degraded,
            self.line.overtaken,
            self.upkeep.runs,
            self.upkeep.trouble,
        )

    def close(self, timeout_s: float | None) -> None:
        """Serve the line, then close the client. Who is left when patience ends gets `Closed`: nothing was done."""
        drained = self.line.close(timeout_s)
        self._close_client(None if drained else 0)  # whoever still waits for the lease stops waiting
        # What is being written goes on, and its caller is told; but a change that never ends is not waited for.
        self.line.wait_ended(_MOMENT_S)

    def _close_client(self, timeout_s: float | None) -> None:
        if self._client is not None:
            self._client.close(timeout_s)


_desks: dict[Key, Desk] = {}
_guard = threading.Lock()
_exits = threading.Event()


def join(directory: Path, table: str, settings: Settings, observer: Observer | None) -> Desk:
    """The desk of this table, with one user more."""
    with _guard:
        key = _key(directory, table)
        desk = _desks.get(key)
        if desk is None:
            desk = _desks[key] = Desk(directory, table, settings, observer)
            if not _exits.is_set():
                _exits.set()
                atexit.register(_close_all)
                os.register_at_fork(after_in_child=_forked)
        elif desk.settings != settings:
            rule = f"this process has it open with other settings: {desk.settings}"
            raise InvalidConfig("store", str(directory), rule)
        desk.users += 1
        return desk


def leave(desk: Desk, timeout_s: float | None) -> None:
    """One user less; the last one closes it."""
    with _guard:
        desk.users -= 1
        if desk.users:
            return
        for key in [key for key, each in _desks.items() if each is desk]:
            del _desks[key]
    desk.close(timeout_s)


def _key(directory: Path, table: str) -> Key:
    """The same through every path that leads there."""
    try:
        found = os.stat(directory)
    except OSError as error:
        missing = f"{error.strerror}; it is never made: make it, or mount it, first"
        raise InvalidConfig("directory", str(directory), missing) from error
    return found.st_dev, found.st_ino, table


def _forked() -> None:
    """A child has no desk, and no lock that its parent may have held."""
    global _guard  # noqa: PLW0603 - there is one list of desks
    _guard = threading.Lock()
    _desks.clear()


def _close_all() -> None:
    """At the end of the program: what was begun is ended, within reason."""
    with _guard:
        left = list(_desks.values())
        _desks.clear()
    for desk in left:
        desk.close(_EXIT_S)
