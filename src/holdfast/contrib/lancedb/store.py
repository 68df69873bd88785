"""Every operation of a store, once, for both faces.

The rule: every mutation is a job in the write queue; a read uses LanceDB's own table and does not wait. Rows are
checked against the schema before they are queued, so that a caller's mistake does not fail the writes of others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.contrib.lancedb import reading, writing
from holdfast.contrib.lancedb import shared_table as shared_tables
from holdfast.contrib.lancedb.write_queue import Job
from holdfast.errors import Closed, HoldfastError, InvalidConfig, LeaseLost, NotFound, PartlyDone

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.contrib.lancedb.settings import StoreSettings
    from holdfast.contrib.lancedb.shared_table import SharedTable, StoreStatus
    from holdfast.contrib.lancedb.writing import Change, OptimizeResult, Row, Written
    from holdfast.observer import Observer

T = TypeVar("T")
KEY = "id"
CLOSE_S = 30.0
RETENTION = timedelta(days=7)
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")  # the names that LanceDB opens
_LEAST_RETENTION = timedelta(hours=1)


class Waiting(Protocol):
    """How a face waits: on the calling thread, or in the event loop."""

    async def wait(self, future: Future[T]) -> T:
        """Wait for the result of a job."""
        ...

    async def run(self, call: Callable[[], T]) -> T:
        """Run a function that blocks, without blocking an event loop."""
        ...

    async def run_to_end(self, call: Callable[[], T]) -> T:
        """Like `run`, but a cancelled caller waits until the function has ended."""
        ...


class StoreBase:
    """The operations of both faces. Each is a coroutine that awaits only `_waiting`."""

    _waiting: Waiting

    def __init__(self, shared: SharedTable, key: str) -> None:
        self._shared = shared
        self._key = key
        self._closed = False

    @property
    def directory(self) -> Path:
        """The LanceDB directory."""
        return self._shared.directory

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table in its newest version."""
        return self._shared.schema(refresh=True)

    def status(self) -> StoreStatus:
        """Return the state of the store: its mode, the queued writes, and its problems."""
        return self._shared.status()

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._shared.settings.mode
        return f"<store {self._shared.name!r} in {self.directory} {state}>"

    # The operations.

    async def _do(self, work: Callable[..., T], *args: Any) -> T:
        answer: T = await self._ask(Job(lambda access: work(access, *args)))
        return answer

    async def _ask(self, job: Job) -> Any:
        if self._closed:
            raise Closed("store")
        write_queue = self._shared.write_queue
        slot = write_queue.slot()
        if slot is not None:
            try:
                await self._waiting.wait(slot)
            except BaseException:
                write_queue.give_up(slot)
                raise
        return await self._waiting.wait(write_queue.join(job))

    async def _create(self, schema: pa.Schema | None) -> None:
        if not writing.exists(self._shared.writer_lock.uri):
            if schema is None:
                raise NotFound(self._shared.name, "table, and no schema was given to create it")
            await self._do(writing.create, schema)
        missing = [name for name in (schema or self._shared.schema()).names if name not in self._shared.schema().names]
        if missing:
            rule = "the table has no such columns; open it without a schema and add them with add_columns"
            raise InvalidConfig("schema", missing, rule)
        stored = self._shared.schema()
        given = stored if schema is None else writing.as_stored(schema)
        other = [field.name for field in given if field.type != stored.field(field.name).type]
        if other:
            fields = ", ".join(str(stored.field(each)) for each in other)
            raise InvalidConfig("schema", other, f"the table has {fields}")
        if self._key not in self._shared.schema().names:
            raise InvalidConfig("key", self._key, "the table has no such column")
        if self._shared.users == 1:
            await self._waiting.run(self._shared.catch_up)

    async def _add(self, row: Row) -> Written:
        written: Written = await self._ask(Job(rows=self._rows([row])))
        return written

    async def _add_many(self, rows: Iterable[Row] | pa.Table) -> Written:
        table, size = self._rows(rows), self._shared.settings.batch
        if table.num_rows <= size:
            only: Written = await self._ask(Job(rows=table))
            return only
        failed: list[tuple[int, int, Exception]] = []
        last: Written | None = None
        done = in_a_row = start = 0
        for start in range(0, table.num_rows, size):
            chunk = table.slice(start, size)
            try:
                last = await self._add_chunk(chunk)
                done, in_a_row = done + chunk.num_rows, 0
            except Exception as error:
                failed.append((start, chunk.num_rows, error))
                in_a_row += 1
                if in_a_row >= self._shared.settings.stop_after or isinstance(error, Closed):
                    break
        if failed or last is None:
            left = table.num_rows - done - sum(rows for _, rows, _ in failed)
            raise PartlyDone(self._shared.name, done, tuple(failed), left) from failed[-1][2]
        return last._replace(rows=done)

    async def _add_chunk(self, rows: pa.Table) -> Written:
        try:
            written: Written = await self._ask(Job(rows=rows))
        except LeaseLost as lost:
            if lost.result is None:
                raise
            written = lost.result  # the lease was lost after the commit: the rows are stored and must not be sent again
        return written

    async def _upsert(self, rows: Row | Iterable[Row] | pa.Table) -> Written:
        table = self._rows(rows)
        writing.refuse_alike(table, self._key)
        return await self._do(writing.upsert, table, self._key)

    async def _update(self, value: Any, values: Row) -> Written:
        writing.literal(value)
        self._rows([{**values, self._key: value}], whole=False)
        if values.get(self._key, value) != value:
            raise InvalidConfig("values", values[self._key], f"the {self._key} of a row cannot be changed")
        return await self._do(writing.update, value, dict(values), self._key)

    async def _transform(self, where: str | None, change: Change) -> Written:
        if not callable(change):
            raise InvalidConfig("change", change, "it must be a function from a row to a row")
        return await self._do(writing.transform, where, change, self._key)

    async def _delete(self, values: Iterable[Any]) -> Written:
        where = writing.any_of(self._key, values)
        return await self._do(writing.delete, where)

    async def _delete_where(self, where: str) -> Written:
        if not isinstance(where, str) or not where.strip():
            raise InvalidConfig("where", where, "it must be a filter; 'true' matches all rows")
        return await self._do(writing.delete, where)

    async def _add_columns(self, columns: Mapping[str, str]) -> tuple[str, ...]:
        added = await self._do(writing.add_columns, dict(columns))
        self._shared.schema(refresh=True)
        return added

    async def _index_vectors(self, column: str, kind: str, metric: str, options: Mapping[str, Any]) -> Written:
        return await self._do(writing.index_vectors, column, kind, metric, options)

    async def _index_text(self, column: str) -> bool:
        try:
            await self._do(writing.index_text, column)
        except HoldfastError:
            raise  # a refusal of the writer lock is not a failure of the index
        except Exception as error:
            self._shared.text.failed(error)
            return False
        self._shared.text.ready()
        return True

    async def _optimize(self, retention: timedelta) -> OptimizeResult:
        if not isinstance(retention, timedelta) or retention < _LEAST_RETENTION:
            rule = "it must be at least an hour, because a reader may still use an older version"
            raise InvalidConfig("retention", retention, rule)
        return await self._do(writing.optimize, retention)

    async def _fold(self) -> int:
        return await self._do(writing.fold)

    async def _search(self, query: reading.SearchQuery) -> list[dict[str, Any]]:
        reading.check(query)
        return await self._waiting.run(partial(reading.search, self._shared, query))

    async def _get(self, value: Any) -> dict[str, Any] | None:
        where = writing.any_of(self._key, [value])
        found = await self._waiting.run(partial(reading.rows, self._shared, where, 1))
        return found[0] if found else None

    async def _count(self, where: str | None) -> int:
        return await self._waiting.run(partial(reading.count, self._shared, where))

    async def _close(self, timeout_s: float | None) -> None:
        if not self._closed:
            self._shared.write_queue.refuse_inside("close")
            self._closed = True
            await self._waiting.run(partial(shared_tables.leave, self._shared, timeout_s))

    def _rows(self, rows: Row | Iterable[Row] | pa.Table, *, whole: bool = True) -> pa.Table:
        found = writing.listed(rows)
        try:
            return writing.as_table(found, self._shared.schema(), whole=whole)
        except InvalidConfig:
            # Another process may have added a column.
            return writing.as_table(found, self._shared.schema(refresh=True), whole=whole)


S = TypeVar("S", bound=StoreBase)


async def opened(
    kind: type[S],
    directory: str | os.PathLike[str],
    table: str,
    settings: StoreSettings,
    schema: pa.Schema | None,
    key: str,
    observer: Observer | None,
) -> S:
    """Open a store and create its table if necessary. A failure leaves nothing open."""
    if not isinstance(table, str) or not _NAME.fullmatch(table):
        raise InvalidConfig("table", table, "it must have 1 to 200 characters: letters, digits, _, - and .")
    where = Path(os.path.abspath(directory))  # noqa: ASYNC240 - it does no I/O
    waiting = kind._waiting  # noqa: SLF001 - its own class
    joined: list[SharedTable] = []
    try:
        await waiting.run_to_end(lambda: joined.append(shared_tables.join(where, table, settings, observer)))
        store = kind(joined[0], key)
        await store._create(schema)  # noqa: SLF001
    except BaseException:
        for shared in joined:
            await waiting.run_to_end(partial(shared_tables.leave, shared, 0))
        raise
    return store
