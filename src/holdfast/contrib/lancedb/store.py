"""Every operation of a store, once, for both faces.

The rule: a mutation is a job in the line, and there is no other way to one; a read asks LanceDB's own table and waits
for nobody. Rows are checked against the schema before they stand in the line, so that nobody's mistake fails others.
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

from holdfast.contrib.lancedb import desk as desks
from holdfast.contrib.lancedb import reading, writing
from holdfast.contrib.lancedb.line import Job
from holdfast.errors import Closed, HoldfastError, InvalidConfig, LeaseLost, NotFound, PartlyDone

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.contrib.lancedb.desk import Desk, Status
    from holdfast.contrib.lancedb.settings import Settings
    from holdfast.contrib.lancedb.writing import Change, Row, Tidied, Written
    from holdfast.observer import Observer

T = TypeVar("T")
KEY = "id"
CLOSE_S = 30.0
RETENTION = timedelta(days=7)
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")  # LanceDB opens no others
_LEAST_RETENTION = timedelta(hours=1)


class Form(Protocol):
    """How a face waits: on its thread, or in its event loop."""

    async def wait(self, future: Future[T]) -> T: ...

    async def aside(self, call: Callable[[], T]) -> T: ...

    async def settled(self, call: Callable[[], T]) -> T:
        """Like `aside`, and whoever is cancelled stays until it is over."""
        ...


class StoreBase:
    """What both faces share. Each operation is a coroutine that awaits its form only."""

    _form: Form

    def __init__(self, desk: Desk, key: str) -> None:
        self._desk = desk
        self._key = key
        self._closed = False

    @property
    def directory(self) -> Path:
        """The LanceDB directory."""
        return self._desk.directory

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table, as they are now."""
        return self._desk.schema(anew=True)

    def status(self) -> Status:
        """What is to be known of it: who guards it, who waits, and what does not go well."""
        return self._desk.status()

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._desk.settings.mode
        return f"<store {self._desk.name!r} in {self.directory} {state}>"

    # The operations.

    async def _do(self, work: Callable[..., T], *args: Any) -> T:
        answer: T = await self._ask(Job(lambda passage: work(passage, *args)))
        return answer

    async def _ask(self, job: Job) -> Any:
        if self._closed:
            raise Closed("store")
        line = self._desk.line
        place = line.place()
        if place is not None:
            try:
                await self._form.wait(place)
            except BaseException:
                line.give_up(place)
                raise
        return await self._form.wait(line.join(job))

    async def _create(self, schema: pa.Schema | None) -> None:
        if not writing.exists(self._desk.gate.uri):
            if schema is None:
                raise NotFound(self._desk.name, "table, and no schema was given to make it with")
            await self._do(writing.create, schema)
        missing = [name for name in (schema or self._desk.schema()).names if name not in self._desk.schema().names]
        if missing:
            rule = "the table lacks them: open it without a schema, and add them with add_columns"
            raise InvalidConfig("schema", missing, rule)
        there = self._desk.schema()
        given = there if schema is None else writing.as_kept(schema)
        other = [field.name for field in given if field.type != there.field(field.name).type]
        if other:
            raise InvalidConfig("schema", other, f"the table has {', '.join(str(there.field(each)) for each in other)}")
        if self._key not in self._desk.schema().names:
            raise InvalidConfig("key", self._key, "the table has no such column")
        if self._desk.users == 1:
            await self._form.aside(self._desk.catch_up)

    async def _add(self, row: Row) -> Written:
        written: Written = await self._ask(Job(rows=self._rows([row])))
        return written

    async def _add_many(self, rows: Iterable[Row] | pa.Table) -> Written:
        table, size = self._rows(rows), self._desk.settings.batch
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
                if in_a_row >= self._desk.settings.stop_after or isinstance(error, Closed):
                    break
        if failed or last is None:
            left = table.num_rows - done - sum(rows for _, rows, _ in failed)
            raise PartlyDone(self._desk.name, done, tuple(failed), left) from failed[-1][2]
        return last._replace(rows=done)

    async def _add_chunk(self, rows: pa.Table) -> Written:
        try:
            written: Written = await self._ask(Job(rows=rows))
        except LeaseLost as lost:
            if lost.result is None:
                raise
            written = lost.result  # it was lost after the commit: the rows are there, and must not be sent again
        return written

    async def _upsert(self, rows: Row | Iterable[Row] | pa.Table) -> Written:
        table = self._rows(rows)
        writing.refuse_alike(table, self._key)
        return await self._do(writing.upsert, table, self._key)

    async def _update(self, value: Any, values: Row) -> Written:
        writing.literal(value)
        self._rows([{**values, self._key: value}], whole=False)
        if values.get(self._key, value) != value:
            raise InvalidConfig("values", values[self._key], f"the {self._key} of a row stays as it is")
        return await self._do(writing.update, value, dict(values), self._key)

    async def _transform(self, where: str | None, change: Change) -> Written:
        if not callable(change):
            raise InvalidConfig("change", change, "it must be a function that makes a row of a row")
        return await self._do(writing.transform, where, change, self._key)

    async def _delete(self, values: Iterable[Any]) -> Written:
        where = writing.any_of(self._key, values)
        return await self._do(writing.delete, where)

    async def _delete_where(self, where: str) -> Written:
        if not isinstance(where, str) or not where.strip():
            raise InvalidConfig("where", where, "it must say which rows; 'true' means all of them")
        return await self._do(writing.delete, where)

    async def _add_columns(self, columns: Mapping[str, str]) -> tuple[str, ...]:
        added = await self._do(writing.add_columns, dict(columns))
        self._desk.schema(anew=True)
        return added

    async def _index_vectors(self, column: str, kind: str, metric: str, options: Mapping[str, Any]) -> Written:
        return await self._do(writing.index_vectors, column, kind, metric, options)

    async def _index_text(self, column: str) -> bool:
        try:
            await self._do(writing.index_text, column)
        except HoldfastError:
            raise  # what the gate says is never taken for a failure of the index
        except Exception as error:
            self._desk.text.failed(error)
            return False
        self._desk.text.ready()
        return True

    async def _optimize(self, retention: timedelta) -> Tidied:
        if not isinstance(retention, timedelta) or retention < _LEAST_RETENTION:
            raise InvalidConfig("retention", retention, "an hour at least: somebody may be reading an older version")
        return await self._do(writing.optimize, retention)

    async def _fold(self) -> int:
        return await self._do(writing.fold)

    async def _search(self, asked: reading.Asked) -> list[dict[str, Any]]:
        reading.check(asked)
        return await self._form.aside(partial(reading.search, self._desk, asked))

    async def _get(self, value: Any) -> dict[str, Any] | None:
        where = writing.any_of(self._key, [value])
        found = await self._form.aside(partial(reading.rows, self._desk, where, 1))
        return found[0] if found else None

    async def _count(self, where: str | None) -> int:
        return await self._form.aside(partial(reading.count, self._desk, where))

    async def _close(self, timeout_s: float | None) -> None:
        if not self._closed:
            self._desk.line.refuse_inside("close")
            self._closed = True
            await self._form.aside(partial(desks.leave, self._desk, timeout_s))

    def _rows(self, rows: Row | Iterable[Row] | pa.Table, *, whole: bool = True) -> pa.Table:
        found = writing.listed(rows)
        try:
            return writing.as_table(found, self._desk.schema(), whole=whole)
        except InvalidConfig:
            return writing.as_table(
                found, self._desk.schema(anew=True), whole=whole
            )  # a column may have come meanwhile


S = TypeVar("S", bound=StoreBase)


async def opened(
    kind: type[S],
    directory: str | os.PathLike[str],
    table: str,
    settings: Settings,
    schema: pa.Schema | None,
    key: str,
    observer: Observer | None,
) -> S:
    """A store, with its table there. What fails on the way leaves nothing open."""
    if not isinstance(table, str) or not _NAME.fullmatch(table):
        raise InvalidConfig("table", table, "it must be a name of letters, digits, _, - and ., 200 characters at most")
    where = Path(os.path.abspath(directory))  # noqa: ASYNC240 - it asks nobody
    form = kind._form  # noqa: SLF001 - its own class
    joined: list[Desk] = []
    try:
        await form.settled(lambda: joined.append(desks.join(where, table, settings, observer)))
        store = kind(joined[0], key)
        await store._create(schema)  # noqa: SLF001
    except BaseException:
        for desk in joined:
            await form.settled(partial(desks.leave, desk, 0))
        raise
    return store
