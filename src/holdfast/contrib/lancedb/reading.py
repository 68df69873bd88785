"""Reads: lock-free, through LanceDB's own table.

The rule: a reader passes on only methods that are known to read. For a method that writes, the error names the method
of the store to use. The reader refuses an unknown method, so that no new version of LanceDB opens a way around the
writer lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import lance

from holdfast.contrib.lancedb.fence import ENGINE
from holdfast.errors import InvalidConfig, NotPermitted, Unavailable, UnavailableReason

if TYPE_CHECKING:
    from holdfast.contrib.lancedb.shared_table import SharedTable

# Methods of LanceDB's tables, blocking and asyncio. A test compares these lists with the installed classes.
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
_NO_METHOD = "the store has no method for it yet"
_STATE = "all readers of this process share the table: open your own table to read an older version"
_HANDLE = "it returns an object that can write"
_SECRET = "it may reveal a password"  # noqa: S105 - a reason
REFUSED = {
    **dict.fromkeys(("alter_columns", "create_scalar_index", "drop_columns", "drop_index", "merge"), _NO_METHOD),
    **dict.fromkeys(
        ("migrate_manifest_paths_v2", "migrate_v2_manifest_paths", "set_unenforced_primary_key"), _NO_METHOD
    ),
    **dict.fromkeys(("refresh_column", "refresh_column_async"), _NO_METHOD),
    **dict.fromkeys(("replace_field_metadata", "update_field_metadata"), _NO_METHOD),
    **dict.fromkeys(("checkpoint_lsm", "close_lsm_writers", "compact_lsm", "flush_lsm"), _NO_METHOD),
    **dict.fromkeys(("set_lsm_write_spec", "unset_lsm_write_spec"), _NO_METHOD),
    **dict.fromkeys(("checkout", "checkout_latest", "close"), _STATE),
    **dict.fromkeys(("branches", "create", "from_inner", "open", "tags", "to_lance"), _HANDLE),
    **dict.fromkeys(("initial_storage_options", "latest_storage_options"), _SECRET),
    "restore": "it would undo what others have written",
}


class Reader:
    """LanceDB's table without the methods that write."""

    __slots__ = ("_table",)

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        if name in READS:
            return getattr(self._table, name)
        if name.startswith("__"):
            raise AttributeError(name)  # Python itself looks up such names, to find out what the object can do
        if name in GATED:
            raise NotPermitted(f"call {name} of a guarded table", f"use {GATED[name]} of the store")
        why = REFUSED.get(name, "it is not known to be a read")
        raise NotPermitted(f"use {name} of a guarded table", why)

    def __len__(self) -> int:
        return int(self._table.count_rows())

    def __repr__(self) -> str:
        return f"<reader of {self._table.name!r}>"


class SearchQuery(NamedTuple):
    """The arguments of a search."""

    vector: Any
    text: str | None
    limit: int
    where: str | None
    column: str


def check(query: SearchQuery) -> None:
    """Raise `InvalidConfig` for arguments that make no search, before anything is read."""
    if query.vector is None and query.text is None:
        raise InvalidConfig("search", None, "it needs a vector, a text, or both")
    if query.text is not None and not isinstance(query.text, str):
        raise InvalidConfig("text", query.text, "it must be text")
    if type(query.limit) is not int or query.limit < 1:
        raise InvalidConfig("limit", query.limit, "it must be a whole number, 1 at least")


def search(shared: SharedTable, query: SearchQuery) -> list[dict[str, Any]]:
    """Search by vector, by text, or by both. If the full-text search fails, search by vector only, and log that."""
    if query.text is None:
        return _nearest(shared, query)
    try:
        found = _found(_query(shared, query), query)
    except Exception as error:
        if query.vector is None:
            if _has_text_index(shared):
                raise
            raise Unavailable(ENGINE, UnavailableReason.NO_INDEX, str(error)) from error
        found = _nearest(shared, query)  # if this fails too, the full-text index was not the reason
        shared.text.went_without(error)
    else:
        shared.text.ready()
    return found


def rows(shared: SharedTable, where: str, limit: int) -> list[dict[str, Any]]:
    """Return the rows that match in the newest version."""
    found: list[dict[str, Any]] = lance.dataset(shared.writer_lock.uri).to_table(filter=where, limit=limit).to_pylist()
    return found


def count(shared: SharedTable, where: str | None) -> int:
    """Return how many rows match in the newest version."""
    return int(lance.dataset(shared.writer_lock.uri).count_rows(filter=where))


def _has_text_index(shared: SharedTable) -> bool:
    return any(index.index_type == "FTS" for index in shared.table().list_indices())


def _nearest(shared: SharedTable, query: SearchQuery) -> list[dict[str, Any]]:
    return _found(shared.table().search(query.vector, vector_column_name=query.column), query)


def _query(shared: SharedTable, query: SearchQuery) -> Any:
    table = shared.table()
    if query.vector is None:
        return table.search(query.text, query_type="fts")
    both = table.search(query_type="hybrid", vector_column_name=query.column)
    return both.vector(query.vector).text(query.text)


def _found(builder: Any, query: SearchQuery) -> list[dict[str, Any]]:
    if query.where is not None:
        builder = builder.where(query.where, prefilter=True)
    found: list[dict[str, Any]] = builder.limit(query.limit).to_list()
    return found
