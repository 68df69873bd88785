"""The store for threads. `holdfast.contrib.lancedb.aio` has the same names, awaited."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdfast.contrib.lancedb import settings
from holdfast.contrib.lancedb.reading import Reader, SearchQuery
from holdfast.contrib.lancedb.store import CLOSE_S, KEY, RETENTION, StoreBase, opened
from holdfast.core.step import run

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from holdfast.contrib.lancedb.writing import Change, OptimizeResult, Row, Written
    from holdfast.observer import Observer

T = TypeVar("T")


class _Blocking:
    """Waits on the calling thread."""

    async def wait(self, future: Future[T]) -> T:
        try:
            return future.result()
        except BaseException:
            future.cancel()  # interrupted: a job that has not begun never runs
            raise

    async def run(self, call: Callable[[], T]) -> T:
        return call()

    async def run_to_end(self, call: Callable[[], T]) -> T:
        return call()


class GuardedStore(StoreBase):
    """A LanceDB table that many processes may write, each mutation under one writer lock. Threads may share it."""

    _waiting = _Blocking()

    @property
    def table(self) -> Reader:
        """LanceDB's own table, for all its reads; methods that write raise `NotPermitted`."""
        return Reader(self._shared.table())

    def add(self, row: Row) -> Written:
        """Add one `row`. Calls at the same time share a lease and a commit."""
        return run(self._add(row))

    def add_many(self, rows: Iterable[Row] | pa.Table) -> Written:
        """Add many `rows` in chunks. `PartlyDone` lists the rows that were not added; repeated failures end it."""
        return run(self._add_many(rows))

    def upsert(self, rows: Row | Iterable[Row] | pa.Table) -> Written:
        """Replace the rows with the keys of `rows` and add the others, in one commit."""
        return run(self._upsert(rows))

    def update(self, value: Any, values: Row) -> Written:
        """Set `values` in the row whose key is `value`; `NotFound` if there is none. A failure changes nothing."""
        return run(self._update(value, values))

    def transform(self, where: str | None, change: Change) -> Written:
        """Replace each row that matches `where` by `change(row)`; `None` keeps the row. One lease, one commit."""
        return run(self._transform(where, change))

    def delete(self, *values: Any) -> Written:
        """Remove the rows whose keys are `values`."""
        return run(self._delete(values))

    def delete_where(self, where: str) -> Written:
        """Remove the rows that match the SQL filter `where`."""
        return run(self._delete_where(where))

    def add_columns(self, columns: Mapping[str, str]) -> tuple[str, ...]:
        """Add the `columns` (name to SQL expression) that are missing; return the names of the added ones."""
        return run(self._add_columns(columns))

    def index_vectors(
        self, column: str = "vector", *, kind: str = "IVF_PQ", metric: str = "cosine", **options: Any
    ) -> Written:
        """Create or replace the index of a vector `column`; `kind`, `metric` and `options` as in LanceDB."""
        return run(self._index_vectors(column, kind, metric, options))

    def index_text(self, column: str = "text") -> bool:
        """Create or replace the full-text index of `column`. Return false if it failed; `status` says why."""
        return run(self._index_text(column))

    def fold(self) -> int:
        """Add the newest rows to the indices. The store does so itself after every 20 commits."""
        return run(self._fold())

    def optimize(self, retention: timedelta = RETENTION) -> OptimizeResult:
        """Compact files, update indices, and remove versions older than `retention`."""
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
        """Return at most `limit` rows nearest to `vector`, to `text`, or to both. Waits for no writer.

        `where`: an SQL filter; `column`: the vector column.
        """
        return run(self._search(SearchQuery(vector, text, limit, where, column)))

    def get(self, value: Any) -> dict[str, Any] | None:
        """Return the row whose key is `value`, or `None`."""
        return run(self._get(value))

    def count(self, where: str | None = None) -> int:
        """Return the number of rows, or of those that match the SQL filter `where`."""
        return run(self._count(where))

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Close this store. The last store of the process finishes the queued writes, for `timeout` seconds at most."""
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
    """Open a table in a LanceDB directory; create it from the schema if it does not exist.

    `directory`: an existing LanceDB directory. `table`: the name of the table. `locking`: a mode (`"off"`,
    `"embedded"`, `"file"`, `"redis"`) or a configuration. `schema`: the Arrow schema of a new table. `key`: the column
    that identifies a row. `observer`: receives the events of the client.
    """
    return run(opened(GuardedStore, directory, table, settings.read(locking, directory), schema, key, observer))
