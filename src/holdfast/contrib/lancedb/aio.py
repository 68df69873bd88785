"""The store for asyncio: the names and signatures of the blocking store, awaited.

The thread of the write queue runs Lance's own code, so that the event loop is not blocked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdfast._lazy import Requires
from holdfast.contrib.lancedb import settings
from holdfast.contrib.lancedb.reading import Reader, SearchQuery
from holdfast.contrib.lancedb.store import CLOSE_S, KEY, RETENTION, StoreBase, opened

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from holdfast.contrib.lancedb.writing import Change, OptimizeResult, Row, Written
    from holdfast.observer import Observer

T = TypeVar("T")


class _Looping:
    """Waits in the event loop. A cancelled caller whose job has begun waits until the job has ended."""

    async def wait(self, future: Future[T]) -> T:
        waiting = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not future.cancel() and not waiting.done():
                await asyncio.wait([waiting])
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # mark as retrieved: its caller has left
            raise

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)

    async def run_to_end(self, call: Callable[[], T]) -> T:
        doing = asyncio.ensure_future(asyncio.to_thread(call))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait([doing])
            if not doing.cancelled():
                doing.exception()  # mark as retrieved: its caller has left
            raise


class GuardedStore(StoreBase):
    """Like `blocking.GuardedStore`, awaited."""

    _waiting = _Looping()
    _table: Any = None

    async def table(self) -> Reader:
        """Like `blocking.GuardedStore.table`: LanceDB's asyncio table, for reads."""
        if self._table is None:
            with Requires("holdfast-lancedb", "lancedb", "lance", "pyarrow"):
                import lancedb  # noqa: PLC0415 - as in `SharedTable.table`

            database = await lancedb.connect_async(str(self.directory), **self._shared.reading())
            self._table = await database.open_table(self._shared.name)
        return Reader(self._table)

    async def add(self, row: Row) -> Written:
        """Like `blocking.GuardedStore.add`, awaited."""
        return await self._add(row)

    async def add_many(self, rows: Iterable[Row] | pa.Table) -> Written:
        """Like `blocking.GuardedStore.add_many`, awaited."""
        return await self._add_many(rows)

    async def upsert(self, rows: Row | Iterable[Row] | pa.Table) -> Written:
        """Like `blocking.GuardedStore.upsert`, awaited."""
        return await self._upsert(rows)

    async def update(self, value: Any, values: Row) -> Written:
        """Like `blocking.GuardedStore.update`, awaited."""
        return await self._update(value, values)

    async def transform(self, where: str | None, change: Change) -> Written:
        """Like `blocking.GuardedStore.transform`, awaited. `change` is a plain function, and runs on another thread."""
        return await self._transform(where, change)

    async def delete(self, *values: Any) -> Written:
        """Like `blocking.GuardedStore.delete`, awaited."""
        return await self._delete(values)

    async def delete_where(self, where: str) -> Written:
        """Like `blocking.GuardedStore.delete_where`, awaited."""
        return await self._delete_where(where)

    async def add_columns(self, columns: Mapping[str, str]) -> tuple[str, ...]:
        """Like `blocking.GuardedStore.add_columns`, awaited."""
        return await self._add_columns(columns)

    async def index_vectors(
        self, column: str = "vector", *, kind: str = "IVF_PQ", metric: str = "cosine", **options: Any
    ) -> Written:
        """Like `blocking.GuardedStore.index_vectors`, awaited."""
        return await self._index_vectors(column, kind, metric, options)

    async def index_text(self, column: str = "text") -> bool:
        """Like `blocking.GuardedStore.index_text`, awaited."""
        return await self._index_text(column)

    async def fold(self) -> int:
        """Like `blocking.GuardedStore.fold`, awaited."""
        return await self._fold()

    async def optimize(self, retention: timedelta = RETENTION) -> OptimizeResult:
        """Like `blocking.GuardedStore.optimize`, awaited."""
        return await self._optimize(retention)

    async def search(
        self,
        vector: Any = None,
        text: str | None = None,
        *,
        limit: int = 10,
        where: str | None = None,
        column: str = "vector",
    ) -> list[dict[str, Any]]:
        """Like `blocking.GuardedStore.search`, awaited."""
        return await self._search(SearchQuery(vector, text, limit, where, column))

    async def get(self, value: Any) -> dict[str, Any] | None:
        """Like `blocking.GuardedStore.get`, awaited."""
        return await self._get(value)

    async def count(self, where: str | None = None) -> int:
        """Like `blocking.GuardedStore.count`, awaited."""
        return await self._count(where)

    async def close(self, timeout: float | None = CLOSE_S) -> None:
        """Like `blocking.GuardedStore.close`, awaited."""
        await self._close(timeout)

    async def __aenter__(self) -> GuardedStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await self.close()
        return False


async def open_store(
    directory: str | os.PathLike[str],
    table: str,
    locking: str | Mapping[str, Any],
    *,
    schema: pa.Schema | None = None,
    key: str = KEY,
    observer: Observer | None = None,
) -> GuardedStore:
    """Like `blocking.open_store`, awaited."""
    return await opened(GuardedStore, directory, table, settings.read(locking, directory), schema, key, observer)
