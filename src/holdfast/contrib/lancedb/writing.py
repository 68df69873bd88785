"""Every mutation of the table, once: each gets a passage through the gate, and commits through it and nowhere else.

The rule: a change of rows is one commit, whole or not there. So an update that fails leaves the old row as it was,
and there is nothing to restore.
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

from holdfast.contrib.lancedb import fitting
from holdfast.errors import InvalidConfig, NotFound
from holdfast.names import is_unicode

if TYPE_CHECKING:
    from holdfast.contrib.lancedb.gate import Passage

Row = Mapping[str, Any]
Change = Callable[[dict[str, Any]], Row | None]


class Written(NamedTuple):
    """What a mutation did: how many rows, which version it made (or found, where there was nothing to do)."""

    rows: int
    version: int
    fence: int | None


class Tidied(NamedTuple):
    """What `optimize` did."""

    files_before: int
    files_after: int
    versions_removed: int
    bytes_removed: int
    version: int


def exists(uri: str) -> bool:
    """Whether there is a table: a version that was committed."""
    return any((Path(uri) / "_versions").glob("*.manifest"))


def as_kept(schema: pa.Schema) -> pa.Schema:
    """The schema as Lance keeps it: of some types it has only one spelling."""
    return LanceSchema.from_pyarrow(schema).to_pyarrow()


def create(passage: Passage, schema: pa.Schema) -> bool:
    """Make the table unless somebody has: looked again where nobody else can be making it."""
    if exists(passage.uri):
        return False
    lance.write_dataset(schema.empty_table(), passage.uri, mode="create", commit_lock=passage.lock)
    return True


def append(passage: Passage, tables: Sequence[pa.Table]) -> Written:
    """Add all of the rows, in one commit."""
    dataset = passage.dataset()
    rows = pa.concat_tables([aligned(table, dataset.schema) for table in tables])
    if not rows.num_rows:
        return Written(0, dataset.version, passage.fence)
    written = lance.write_dataset(rows, dataset, mode="append")
    return Written(rows.num_rows, written.version, passage.fence)


def upsert(passage: Passage, rows: pa.Table, key: str) -> Written:
    """Replace the rows with these keys, add those that are new; in one commit."""
    dataset = passage.dataset()
    if not rows.num_rows:
        return Written(0, dataset.version, passage.fence)
    merge = dataset.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
    merge.conflict_retries(0).execute(aligned(rows, dataset.schema))
    return Written(rows.num_rows, dataset.version, passage.fence)


def transform(passage: Passage, where: str | None, change: Change, key: str) -> Written:
    """Have `change` make new rows of those that match; `None` leaves one as it is. Read and written under one lease."""
    dataset = passage.dataset()
    changed = []
    for row in dataset.to_table(filter=where).to_pylist():
        new = change(copy.deepcopy(row))  # it may change what it gets, lists inside of it too
        if new is None or new == row:
            continue
        if not isinstance(new, Mapping):
            raise InvalidConfig("change", new, "it must give a row, or None")
        if new.get(key) != row[key]:
            raise InvalidConfig("change", new.get(key), f"it must leave the {key} {row[key]!r} as it is")
        changed.append(new)
    if not changed:
        return Written(0, dataset.version, passage.fence)
    rows = as_table(changed, dataset.schema)
    refuse_alike(rows, key)
    passage.check()
    dataset.merge_insert(key).when_matched_update_all().conflict_retries(0).execute(rows)
    return Written(len(changed), dataset.version, passage.fence)


def update(passage: Passage, value: Any, values: Row, key: str) -> Written:
    """New values for the row with this key; `NotFound` if there is none."""
    found = []

    def changed(row: dict[str, Any]) -> Row:
        found.append(row)
        return {**row, **values}

    written = transform(passage, any_of(key, [value]), changed, key)
    if not found:
        raise NotFound(str(value), "row")
    return written


def delete(passage: Passage, where: str) -> Written:
    """Remove what matches; no commit where nothing does."""
    dataset = passage.dataset()
    gone = dataset.count_rows(filter=where)
    if gone:
        dataset.delete(where)
    return Written(gone, dataset.version, passage.fence)


def add_columns(passage: Passage, columns: Mapping[str, str]) -> tuple[str, ...]:
    """Add those of the columns that are missing, each from an SQL expression; which ones, is what it gives back."""
    dataset = passage.dataset()
    missing = {name: expression for name, expression in columns.items() if name not in dataset.schema.names}
    if missing:
        dataset.add_columns(missing)
        # Whoever does not know the column yet writes rows without it.
        strict = [name for name in missing if not dataset.schema.field(name).nullable]
        if strict:
            dataset.alter_columns(*({"path": name, "nullable": True} for name in strict))
    return tuple(missing)


def index_vectors(passage: Passage, column: str, kind: str, metric: str, options: Mapping[str, Any]) -> Written:
    """Make the index of a vector column, or make it anew."""
    dataset = passage.dataset()
    made = dataset.create_index(column, kind, metric=metric, replace=True, **options)
    return Written(made.count_rows(), made.version, passage.fence)


def index_text(passage: Passage, column: str) -> Written:
    """Make the full-text index of a column, or make it anew."""
    dataset = passage.dataset()
    dataset.create_scalar_index(column, "INVERTED", replace=True)
    return Written(dataset.count_rows(), dataset.version, passage.fence)


def fold(passage: Passage) -> int:
    """Have the indices know the rows that came since they were made. Prunes nothing."""
    dataset = passage.dataset()
    dataset.optimize.optimize_indices()
    return int(dataset.version)


def optimize(passage: Passage, retention: timedelta) -> Tidied:
    """Fewer files, current indices, and no versions older than that. What is newest is never removed."""
    dataset = passage.dataset()
    compacted = dataset.optimize.compact_files()
    dataset.optimize.optimize_indices()
    passage.check()  # removing is no commit, so that nothing but this stands before it
    removed = dataset.cleanup_old_versions(older_than=retention)
    return Tidied(
        compacted.files_removed, compacted.files_added, removed.old_versions, removed.bytes_removed, dataset.version
    )


def listed(rows: Row | Iterable[Row] | pa.Table) -> Sequence[Row] | pa.Table:
    """Rows that can be looked at more than once: whatever gives them one by one gives them only once."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, Mapping):
        return [rows]
    found = list(rows) if isinstance(rows, Iterable) else [rows]
    for row in found:
        if not isinstance(row, Mapping):
            raise InvalidConfig("rows", type(row).__name__, "each must be a mapping; or all of them a table of Arrow")
    return found


def as_table(rows: Sequence[Row] | pa.Table, schema: pa.Schema, *, whole: bool = True) -> pa.Table:
    """Rows as Lance takes them; `InvalidConfig` for what does not fit the schema, before anything is written."""
    given = set(rows.column_names) if isinstance(rows, pa.Table) else {name for row in rows for name in row}
    unknown = sorted(given - set(schema.names))
    if unknown:
        raise InvalidConfig("rows", unknown, f"the table has no such column; it has {', '.join(schema.names)}")
    if not isinstance(rows, pa.Table) and (lossy := fitting.lossy(rows, schema)):
        raise InvalidConfig("rows", lossy, "they have whole numbers and known fields only: a part would be left out")
    try:
        table = aligned(rows, schema) if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidConfig("rows", len(rows), f"they do not fit the table: {error}") from error
    empty = [field.name for field in schema if not field.nullable and table.column(field.name).null_count]
    if empty and whole:
        raise InvalidConfig("rows", empty, "these columns may not be empty")
    return table


def refuse_alike(rows: pa.Table, key: str) -> None:
    """Rows are replaced by their key: without one, or with that of another row, nobody can tell which is meant."""
    keys = rows.column(key).to_pylist()
    if None in keys or len(set(keys)) != len(keys):
        raise InvalidConfig("rows", len(keys), f"each must have a {key} of its own")


def aligned(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows with the columns of this schema: what they lack is empty. A column may have come meanwhile."""
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
    """A value as SQL has it."""
    if isinstance(value, bool) or not isinstance(value, str | int) or not is_unicode(str(value)):
        raise InvalidConfig("key", value, "it must be text or a whole number")
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def any_of(key: str, values: Iterable[Any]) -> str:
    """The filter that matches these keys. The column may be called as it likes."""
    wanted = ", ".join(literal(value) for value in values)
    return f"`{key}` IN ({wanted})" if wanted else "false"


def is_indexed(passage: Passage) -> bool:
    """Whether there is an index that could be behind."""
    return bool(passage.dataset().has_index)


def unindexed(uri: str) -> int:
    """How many rows the index that is furthest behind does not know."""
    dataset = lance.dataset(uri)
    stats = (dataset.stats.index_stats(index.name) for index in dataset.describe_indices())
    return max((int(each["num_unindexed_rows"]) for each in stats), default=0)
