"""Reads: lock-free, through LanceDB's own table.

The rule: of that table's methods only those that are known to read are passed on. Those that write have their way
through the gate, which is told; and one that nobody knows yet is refused, so that no new version of LanceDB opens a
way around the gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import lance

from holdfast.contrib.lancedb.fence import ENGINE
from holdfast.errors import InvalidConfig, NotPermitted, Unavailable

if TYPE_CHECKING:
    from holdfast.contrib.lancedb.desk import Desk

# Of LanceDB's tables, blocking and asyncio. A test compares these lists with the classes as they are installed.
READS = frozenset(
    (
        "blob_columns",
        "count_rows",
        "current_branch",
        "embedding_functions",
        "fetch_blob_files",
        "fetch_blob_ranges",
        "fetch_blobs",
        "function_errors",
        "get_lsm_stats",
        "get_lsm_write_spec",
        "head",
        "id",
        "index_stats",
        "infer_tokenizer_configs",
        "is_open",
        "list_indices",
        "list_versions",
        "name",
        "namespace",
        "prewarm_data",
        "prewarm_index",
        "query",
        "schema",
        "search",
        "stats",
        "take_offsets",
        "take_row_ids",
        "to_arrow",
        "to_pandas",
        "to_polars",
        "tokenize",
        "uri",
        "uses_v2_manifest_paths",
        "vector_search",
        "version",
        "wait_for_index",
    )
)
GATED = {
    "add": "add_many",
    "add_columns": "add_columns",
    "cleanup_old_versions": "optimize",
    "compact_files": "optimize",
    "create_fts_index": "index_text",
    "create_index": "index_vectors",
    "create_index_async": "index_vectors",
    "delete": "delete_where",
    "merge_insert": "upsert",
    "optimize": "optimize",
    "update": "transform",
}
_NO_WAY = "there is no way through the gate for it yet"
_STATE = "all readers of this process share the table: open one of your own to look at an older version"
_HANDLE = "what it gives can write"
_TELLS = "it may tell a password"
REFUSED = {
    **dict.fromkeys(("alter_columns", "create_scalar_index", "drop_columns", "drop_index", "merge"), _NO_WAY),
    **dict.fromkeys(("migrate_manifest_paths_v2", "migrate_v2_manifest_paths", "set_unenforced_primary_key"), _NO_WAY),
    **dict.fromkeys(("refresh_column", "refresh_column_async"), _NO_WAY),
    **dict.fromkeys(("replace_field_metadata", "update_field_metadata"), _NO_WAY),
    **dict.fromkeys(("checkpoint_lsm", "close_lsm_writers", "compact_lsm", "flush_lsm"), _NO_WAY),
    **dict.fromkeys(("set_lsm_write_spec", "unset_lsm_write_spec"), _NO_WAY),
    **dict.fromkeys(("checkout", "checkout_latest", "close"), _STATE),
    **dict.fromkeys(("branches", "create", "from_inner", "open", "tags", "to_lance"), _HANDLE),
    **dict.fromkeys(("initial_storage_options", "latest_storage_options"), _TELLS),
    "restore": "it would undo what others have written",
}


class Reader:
    """LanceDB's table without its ways to write."""

    __slots__ = ("_table",)

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        if name in READS:
            return getattr(self._table, name)
        if name.startswith("__"):
            raise AttributeError(name)  # what Python itself asks for, to find out what this is
        if name in GATED:
            raise NotPermitted(f"call {name} of a guarded table", f"use {GATED[name]} of the store")
        why = REFUSED.get(name, "it is not known to be a read")
        raise NotPermitted(f"use {name} of a guarded table", why)

    def __len__(self) -> int:
        return int(self._table.count_rows())

    def __repr__(self) -> str:
        return f"<reader of {self._table.name!r}>"


class Asked(NamedTuple):
    """A question to the table."""

    vector: Any
    text: str | None
    limit: int
    where: str | None
    column: str


def check(asked: Asked) -> None:
    """Refuse what is no question, before anything is read."""
    if asked.vector is None and asked.text is None:
        raise InvalidConfig("search", None, "it needs a vector, a text, or both")
    if asked.text is not None and not isinstance(asked.text, str):
        raise InvalidConfig("text", asked.text, "it must be text")
    if type(asked.limit) is not int or asked.limit < 1:
        raise InvalidConfig("limit", asked.limit, "it must be a whole number, 1 at least")


def search(desk: Desk, asked: Asked) -> list[dict[str, Any]]:
    """By both where both are given. Without a full-text index it goes by the vector alone, and that is told."""
    if asked.text is None:
        return _nearest(desk, asked)
    try:
        found = _found(_query(desk, asked), asked)
    except Exception as error:
        if asked.vector is None:
            if _has_text_index(desk):
                raise
            raise Unavailable(ENGINE, "no full-text index", str(error)) from error
        found = _nearest(desk, asked)  # if this fails too, it was the question, not the text
        desk.text.went_without(error)
    else:
        desk.text.ready()
    return found


def rows(desk: Desk, where: str, limit: int) -> list[dict[str, Any]]:
    """The rows that match, as they are now."""
    found: list[dict[str, Any]] = lance.dataset(desk.gate.uri).to_table(filter=where, limit=limit).to_pylist()
    return found


def count(desk: Desk, where: str | None) -> int:
    """How many rows match, as they are now."""
    return int(lance.dataset(desk.gate.uri).count_rows(filter=where))


def _has_text_index(desk: Desk) -> bool:
    return any(index.index_type == "FTS" for index in desk.table().list_indices())


def _nearest(desk: Desk, asked: Asked) -> list[dict[str, Any]]:
    return _found(desk.table().search(asked.vector, vector_column_name=asked.column), asked)


def _query(desk: Desk, asked: Asked) -> Any:
    table = desk.table()
    if asked.vector is None:
        return table.search(asked.text, query_type="fts")
    both = table.search(query_type="hybrid", vector_column_name=asked.column)
    return both.vector(asked.vector).text(asked.text)


def _found(query: Any, asked: Asked) -> list[dict[str, Any]]:
    if asked.where is not None:
        query = query.where(asked.where, prefilter=True)
    found: list[dict[str, Any]] = query.limit(asked.limit).to_list()
    return found
