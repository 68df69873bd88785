"""The store, for threads. `holdfast.contrib.lancedb.aio` has the same names, awaited."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdfast.contrib.lancedb import settings
from holdfast.contrib.lancedb.reading import Asked, Reader
from holdfast.contrib.lancedb.store import CLOSE_S, KEY, RETENTION, StoreBase, opened
from holdfast.core.step import run

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from holdfast.contrib.lancedb.writing import Change, Row, Tidied, Written
    from holdfast.observer import Observer

T = TypeVar("T")


class _Blocking:
    """Waits where it stands."""

    async def wait(self, future: Future[T]) -> T:
        try:
            return future.result()
        except BaseException:
            future.cancel()  # interrupted: what has not begun never does
            raise

    async def aside(self, call: Callable[[], T]) -> T:
        return call()

    async def settled(self, call: Callable[[], T]) -> T:
        return call()


class GuardedStore(StoreBase):
    """A LanceDB table that many may write at once: every mutation goes through one gate. Threads may share it."""

    _form = _Blocking()

    @property
    def table(self) -> Reader:
        """LanceDB's own table, for every read that it has; what would write is refused."""
        return Reader(self._desk.table())

    def add(self, row: Row) -> Written:
        """Add one row. Calls that come together share a lease and a commit."""
        return run(self._add(row))

    def add_many(self, rows: Iterable[Row] | pa.Table) -> Written:
        """Add many rows, in chunks. `PartlyDone` tells which were not added; after some failures in a row it stops."""
        return run(self._add_many(rows))

    def upsert(self, rows: Row | Iterable[Row] | pa.Table) -> Written:
        """Replace the rows with these keys and add the others, in one commit."""
        return run(self._upsert(rows))

    def update(self, value: Any, values: Row) -> Written:
        """New values for the row with this key; `NotFound` if there is none. If it fails, the old row is as it was."""
        return run(self._update(value, values))

    def transform(self, where: str | None, change: Change) -> Written:
        """Have `change` make new rows of those that match: read and written under one lease, in one commit."""
        return run(self._transform(where, change))

    def delete(self, *values: Any) -> Written:
        """Remove the rows with these keys."""
        return run(self._delete(values))

    def delete_where(self, where: str) -> Written:
        """Remove the rows that match."""
        return run(self._delete_where(where))

    def add_columns(self, columns: Mapping[str, str]) -> tuple[str, ...]:
        """Add those of the columns that are missing, each from an SQL expression; tells which."""
        return run(self._add_columns(columns))

    def index_vectors(
        self, column: str = "vector", *, kind: str = "IVF_PQ", metric: str = "cosine", **options: Any
    ) -> Written:
        """Make the index of a vector column, or make it anew."""
        return run(self._index_vectors(column, kind, metric, options))

    def index_text(self, column: str = "text") -> bool:
        """Make the full-text index, or make it anew. False if it failed: `status` says why, searches go by vectors."""
        return run(self._index_text(column))

    def fold(self) -> int:
        """Have the indices know the newest rows. Done by itself after every 20 commits."""
        return run(self._fold())

    def optimize(self, retention: timedelta = RETENTION) -> Tidied:
        """Fewer files, current indices, no versions older than that."""
        return run(self._optimize(retention))

    def search(
        self,
        vector: Any = None,
        text: str | None = None,
        *,
        limit: int = 10,
        where: str | None = None,
        column: str = "vector",
    ) -> list[dict[str, Any]]:
        """The nearest rows, by vector, by text, or by both. Waits for no writer."""
        return run(self._search(Asked(vector, text, limit, where, column)))

    def get(self, value: Any) -> dict[str, Any] | None:
        """The row with this key."""
        return run(self._get(value))

    def count(self, where: str | None = None) -> int:
        """How many rows there are, or match."""
        return run(self._count(where))

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Leave it. The last one of this process that does serves what is in the line, and closes everything."""
        run(self._close(timeout))

    def __enter__(self) -> GuardedStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False


def open_store(
    directory: str | os.PathLike[str],
    table: str,
    locking: str | Mapping[str, Any],
    *,
    schema: pa.Schema | None = None,
    key: str = KEY,
    observer: Observer | None = None,
) -> GuardedStore:
    """A table in a LanceDB directory, made from the schema if it is not there.

    `locking` is a mode (`"off"`, `"embedded"`, `"file"`, `"redis"`) or a configuration. `key` is the column that tells
    rows apart.
    """
    return run(opened(GuardedStore, directory, table, settings.read(locking, directory), schema, key, observer))
