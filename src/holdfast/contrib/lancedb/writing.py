"""Every mutation of the table, once: each gets a `WriteAccess` and commits only through it.

The rule: a change of rows is one commit, complete or absent. So a failed update leaves the old row unchanged, and there
is nothing to restore.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lance
import pyarrow as pa
from lance.schema import LanceSchema

from holdfast.contrib.lancedb import casting
from holdfast.errors import InvalidConfig, NotFound
from holdfast.names import is_unicode

if TYPE_CHECKING:
    from holdfast.contrib.lancedb.writer_lock import WriteAccess

Row = Mapping[str, Any]
Change = Callable[[dict[str, Any]], Row | None]


class Written(NamedTuple):
    """The result of a mutation: rows, the new version (the present one if nothing changed), and the fence."""

    rows: int
    version: int
    fence: int | None


class OptimizeResult(NamedTuple):
    """The result of `optimize`."""

    files_before: int
    files_after: int
    versions_removed: int
    bytes_removed: int
    version: int


def exists(uri: str) -> bool:
    """Return whether the table exists, that is, has a committed version."""
    return any((Path(uri) / "_versions").glob("*.manifest"))


def as_stored(schema: pa.Schema) -> pa.Schema:
    """Return the schema as Lance stores it: Lance unifies some types."""
    return LanceSchema.from_pyarrow(schema).to_pyarrow()


def create(access: WriteAccess, schema: pa.Schema) -> bool:
    """Create the table unless it exists. The check is under the writer lock, so that only one process creates it."""
    if exists(access.uri):
        return False
    lance.write_dataset(schema.empty_table(), access.uri, mode="create", commit_lock=access.lock)
    return True


def append(access: WriteAccess, tables: Sequence[pa.Table]) -> Written:
    """Add all rows in one commit."""
    dataset = access.dataset()
    rows = pa.concat_tables([aligned(table, dataset.schema) for table in tables])
    if not rows.num_rows:
        return Written(0, dataset.version, access.fence)
    written = lance.write_dataset(rows, dataset, mode="append")
    return Written(rows.num_rows, written.version, access.fence)


def upsert(access: WriteAccess, rows: pa.Table, key: str) -> Written:
    """Replace the rows with these keys and add the new ones, in one commit."""
    dataset = access.dataset()
    if not rows.num_rows:
        return Written(0, dataset.version, access.fence)
    merge = dataset.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
    merge.conflict_retries(0).execute(aligned(rows, dataset.schema))
    return Written(rows.num_rows, dataset.version, access.fence)


def transform(access: WriteAccess, where: str | None, change: Change, key: str) -> Written:
    """Replace each matching row by `change(row)`, or keep it if that is `None`. Read and write under one lease."""
    dataset = access.dataset()
    changed = []
    for row in dataset.to_table(filter=where).to_pylist():
        new = change(copy.deepcopy(row))  # the function may change the row and the lists in it
        if new is None or new == row:
            continue
        if not isinstance(new, Mapping):
            raise InvalidConfig("change", new, "it must return a row or None")
        if new.get(key) != row[key]:
            raise InvalidConfig("change", new.get(key), f"it must not change the {key} {row[key]!r}")
        changed.append(new)
    if not changed:
        return Written(0, dataset.version, access.fence)
    rows = as_table(changed, dataset.schema)
    refuse_alike(rows, key)
    access.check()
    dataset.merge_insert(key).when_matched_update_all().conflict_retries(0).execute(rows)
    return Written(len(changed), dataset.version, access.fence)


def update(access: WriteAccess, value: Any, values: Row, key: str) -> Written:
    """Set new values in the row with this key; `NotFound` if there is none."""
    found = []

    def changed(row: dict[str, Any]) -> Row:
        found.append(row)
        return {**row, **values}

    written = transform(access, any_of(key, [value]), changed, key)
    if not found:
        raise NotFound(str(value), "row")
    return written


def delete(access: WriteAccess, where: str) -> Written:
    """Remove the rows that match; make no commit if none does."""
    dataset = access.dataset()
    gone = dataset.count_rows(filter=where)
    if gone:
        dataset.delete(where)
    return Written(gone, dataset.version, access.fence)


def add_columns(access: WriteAccess, columns: Mapping[str, str]) -> tuple[str, ...]:
    """Add the columns that are missing, each from an SQL expression; return the names of the added ones."""
    dataset = access.dataset()
    missing = {name: expression for name, expression in columns.items() if name not in dataset.schema.names}
    if missing:
        dataset.add_columns(missing)
        # A process with a cached schema still writes rows without the new column.
        strict = [name for name in missing if not dataset.schema.field(name).nullable]
        if strict:
            dataset.alter_columns(*({"path": name, "nullable": True} for name in strict))
    return tuple(missing)


def index_vectors(access: WriteAccess, column: str, kind: str, metric: str, options: Mapping[str, Any]) -> Written:
    """Create or replace the index of a vector column."""
    dataset = access.dataset()
    made = dataset.create_index(column, kind, metric=metric, replace=True, **options)
    return Written(made.count_rows(), made.version, access.fence)


def index_text(access: WriteAccess, column: str) -> Written:
    """Create or replace the full-text index of a column."""
    dataset = access.dataset()
    dataset.create_scalar_index(column, "INVERTED", replace=True)
    return Written(dataset.count_rows(), dataset.version, access.fence)


def fold(access: WriteAccess) -> int:
    """Add the rows that the indices do not cover yet to the indices; return the version. Remove nothing."""
    dataset = access.dataset()
    dataset.optimize.optimize_indices()
    return int(dataset.version)


def optimize(access: WriteAccess, retention: timedelta) -> OptimizeResult:
    """Compact files, update indices, remove versions older than the retention. The newest version always stays."""
    dataset = access.dataset()
    compacted = dataset.optimize.compact_files()
    dataset.optimize.optimize_indices()
    access.check()  # removing versions is no commit, so the commit lock does not check it
    removed = dataset.cleanup_old_versions(older_than=retention)
    return OptimizeResult(
        compacted.files_removed, compacted.files_added, removed.old_versions, removed.bytes_removed, dataset.version
    )


def listed(rows: Row | Iterable[Row] | pa.Table) -> Sequence[Row] | pa.Table:
    """Return the rows as a sequence or table, because an iterator can be read only once."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, Mapping):
        return [rows]
    found = list(rows) if isinstance(rows, Iterable) else [rows]
    for row in found:
        if not isinstance(row, Mapping):
            raise InvalidConfig("rows", type(row).__name__, "each must be a mapping, or all of them an Arrow table")
    return found


def as_table(rows: Sequence[Row] | pa.Table, schema: pa.Schema, *, whole: bool = True) -> pa.Table:
    """Return the rows as an Arrow table; `InvalidConfig` if they do not fit the schema, before anything is written."""
    given = set(rows.column_names) if isinstance(rows, pa.Table) else {name for row in rows for name in row}
    unknown = sorted(given - set(schema.names))
    if unknown:
        raise InvalidConfig("rows", unknown, f"the table has no such column; it has {', '.join(schema.names)}")
    if not isinstance(rows, pa.Table) and (lossy := casting.lossy(rows, schema)):
        raise InvalidConfig("rows", lossy, "a value does not fit its column and would be truncated")
    try:
        table = aligned(rows, schema) if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidConfig("rows", len(rows), f"they do not fit the table: {error}") from error
    empty = [field.name for field in schema if not field.nullable and table.column(field.name).null_count]
    if empty and whole:
        raise InvalidConfig("rows", empty, "these columns may not be empty")
    return table


def refuse_alike(rows: pa.Table, key: str) -> None:
    """Raise `InvalidConfig` unless every row has a key of its own, because rows are replaced by key."""
    keys = rows.column(key).to_pylist()
    if None in keys or len(set(keys)) != len(keys):
        raise InvalidConfig("rows", len(keys), f"each must have its own {key}")


def aligned(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with the columns of this schema; columns that another process has added meanwhile are empty."""
    if rows.schema.equals(schema):
        return rows
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def literal(value: Any) -> str:
    """Return a value as an SQL literal."""
    if isinstance(value, bool) or not isinstance(value, str | int) or not is_unicode(str(value)):
        raise InvalidConfig("key", value, "it must be text or a whole number")
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def any_of(key: str, values: Iterable[Any]) -> str:
    """Return the filter that matches these keys; the column's name is quoted."""
    wanted = ", ".join(literal(value) for value in values)
    return f"`{key}` IN ({wanted})" if wanted else "false"


def is_indexed(access: WriteAccess) -> bool:
    """Return whether the table has an index."""
    return bool(access.dataset().has_index)


def unindexed(uri: str) -> int:
    """Return the number of rows that the most outdated index does not cover."""
    dataset = lance.dataset(uri)
    stats = (dataset.stats.index_stats(index.name) for index in dataset.describe_indices())
    return max((int(each["num_unindexed_rows"]) for each in stats), default=0)
