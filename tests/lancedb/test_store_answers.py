"""The results of a store are true: no row is dropped silently, and the counts match the rows."""

import pyarrow as pa
import pytest
from store_kit import SCHEMA, row, together

from holdfast import Fenced, InvalidConfig, LeaseLost, failpoints
from holdfast.testing import eventually


def test_all_rows_of_a_generator_are_added(store):
    """A changed schema makes the store read the rows twice, and a generator yields them once."""
    store.add_columns({"extra": "cast(0 as bigint)"})
    store._shared._schema = SCHEMA  # as in a process that does not know the new column

    assert store.add_many({**row(n), "extra": 1} for n in range(5)).rows == 5
    assert store.upsert({**row(n), "extra": 2} for n in range(6)).rows == 6
    assert store.count("extra = 2") == 6
    with pytest.raises(InvalidConfig):
        store.add_many({**row(n), "oops": 1} for n in range(5))


@pytest.mark.parametrize("rows", [None, 5, "abc", [None], [5], [("id", 1)]], ids=repr)
def test_a_value_that_is_no_row_is_refused(store, rows):
    """The error speaks of rows, not of dictionaries."""
    with pytest.raises(InvalidConfig):
        store.add_many(rows)


def test_an_empty_list_of_rows_does_nothing(store):
    """An empty list makes no version and counts no row."""
    before = store.add(row(1)).version

    assert store.add_many([])[:2] == (0, before)
    assert store.upsert([])[:2] == (0, before)
    assert store.delete()[:2] == (0, before)


def test_a_change_inside_a_nested_value_is_a_change(opened):
    """`change` may modify its row in place, including nested lists and structs."""
    inner = pa.struct([("hits", pa.int64())])
    store = opened(schema=pa.schema([("id", pa.string()), ("tags", pa.list_(pa.string())), ("meta", inner)]))
    store.add({"id": "1", "tags": ["a"], "meta": {"hits": 1}})

    def change(found):
        found["tags"].append("b")
        found["meta"]["hits"] += 1
        return found

    assert store.transform(None, change).rows == 1
    assert store.get("1") == {"id": "1", "tags": ["a", "b"], "meta": {"hits": 2}}


@pytest.mark.parametrize("keys", [[None], ["a", "a"]], ids=["none", "twice"])
def test_a_row_with_an_ambiguous_key_is_not_changed_silently(store, keys):
    """The store could not find the row again to replace it, so it raises and writes nothing."""
    store.add_many([{"id": key, "text": "old"} for key in keys])
    before = store.add(row(1)).version

    with pytest.raises(InvalidConfig, match="its own id"):
        store.transform("text = 'old'", lambda found: {**found, "n": 7})

    assert store.count("n = 7") == 0
    assert store.delete("absent").version == before


def test_a_number_is_never_truncated(store):
    """Arrow silently truncates 1.5 to 1 in an integer column."""
    store.add(row(1, n=2.0))

    with pytest.raises(InvalidConfig, match="would be truncated"):
        store.add(row(2, n=1.5))
    with pytest.raises(InvalidConfig, match="would be truncated"):
        store.update("r1", {"n": 1.5})
    with pytest.raises(InvalidConfig, match="do not fit"):
        store.add(row(2, n=2**70))
    assert (store.count(), store.get("r1")["n"]) == (1, 2)


def test_a_change_returns_a_row_or_none(store):
    """Any other value is an error that names it."""
    store.add(row(1))

    with pytest.raises(InvalidConfig, match="a row or None"):
        store.transform(None, lambda _: [1])


def test_a_forbidden_null_fails_its_own_caller_only(opened, locking):
    """The store checks a row before it joins the batch of other callers."""
    names = [pa.field(name, pa.string(), nullable=False) for name in ("id", "text")]
    store = opened({**locking("embedded"), "batching": {"window": 0.2}}, schema=pa.schema(names))

    answers = together([lambda n=n: store.add({"id": str(n), "text": None if n == 3 else "x"}) for n in range(8)])

    assert [n for n, answer in enumerate(answers) if isinstance(answer, InvalidConfig)] == [3]
    assert store.count() == 7
    assert store.update("1", {"text": "y"}).rows == 1, "a part of a row is enough for an update"


@pytest.mark.parametrize("key", ["userId", "my key", "select", "user-id"])
def test_the_key_may_be_any_column(opened, key):
    """The store never treats the name of the key column as SQL."""
    store = opened(schema=pa.schema([(key, pa.string()), ("n", pa.int64())]), key=key)
    store.add({key: "a", "n": 1})

    assert store.get("a") == {key: "a", "n": 1}
    assert store.update("a", {"n": 2}).rows == 1
    assert store.upsert({key: "a", "n": 3}).rows == 1
    assert store.delete("a").rows == 1


@pytest.mark.parametrize(
    "inside", [{"hits": 1, "other": 2}, {"hits": 1.5}, {"many": [{"one": 1, "two": 2}]}], ids=["field", "half", "deep"]
)
def test_no_nested_field_is_dropped(opened, inside):
    """An unknown field of a struct is refused like an unknown column."""
    kind = pa.struct([("hits", pa.int64()), ("many", pa.list_(pa.struct([("one", pa.int64())])))])
    store = opened(schema=pa.schema([("id", pa.string()), ("meta", kind)]))

    with pytest.raises(InvalidConfig, match="would be truncated"):
        store.add({"id": "1", "meta": inside})

    store.add({"id": "2", "meta": {"hits": 1, "many": [{"one": 1}, None]}})
    assert store.count() == 1


def test_an_invalid_search_is_no_failure_of_the_index(store):
    """A caller's mistake is its own error, and `status` stays healthy."""
    store.add(row(1, "green tea"))
    assert store.index_text("text")

    with pytest.raises(ValueError, match="nosuch"):
        store.search([0.0] * 8, "tea", where="nosuch = 1")
    with pytest.raises(ValueError, match="nosuch"):
        store.search(text="tea", where="nosuch = 1")
    with pytest.raises(ValueError, match="dim"):
        store.search([0.0] * 3, "tea")
    with pytest.raises(InvalidConfig, match="text"):
        store.search(text=5)

    assert (store.status().full_text, store.status().degraded) == ("ready", 0)


def test_a_schema_of_other_types_is_refused(opened):
    """Otherwise the first row would fail, long after the store was opened."""
    opened()
    other = SCHEMA.set(3, pa.field("vector", pa.list_(pa.float32(), 99)))

    with pytest.raises(InvalidConfig, match="vector"):
        opened(schema=other)


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("ns"), pa.float16(), pa.decimal128(10, 2), pa.map_(pa.string(), pa.int64()), pa.time64("ns"),
     pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.float16(), 2), pa.large_string(), pa.binary(), pa.bool_(),
     pa.list_(pa.field("item", pa.float32(), nullable=False), 4),
     pa.dictionary(pa.int32(), pa.string(), ordered=True), pa.string_view()],
    ids=str,
)  # fmt: skip
def test_a_table_is_opened_again_with_the_schema_that_made_it(opened, kind):
    """This holds even where Lance stores a type under another name."""
    schema = pa.schema([("id", pa.string()), ("value", kind)])
    opened(schema=schema).close()

    assert opened(schema=schema).schema.names == ["id", "value"]


@pytest.mark.parametrize("name", ["a:b", "a b", "ü", "a%b", ".a", "x" * 201, "", "a/b"])
def test_a_name_that_no_search_could_open_is_refused(opened, memory, name):
    """LanceDB would write such a table and then fail to open it."""
    with pytest.raises(InvalidConfig, match="table"):
        opened(table=name)

    assert list(memory.iterdir()) == []


@pytest.mark.parametrize("mode", ["embedded", "file"])
@pytest.mark.parametrize("name", ["a#b", "a%41b", "a?b", "a@b", "a%2fb"])
def test_a_directory_may_have_any_name(opened, tmp_path, mode, name):
    """The leases are inside the directory, and nothing is created beside it."""
    base = tmp_path / "base"
    (base / name).mkdir(parents=True)

    opened(mode, directory=base / name).add(row(1))

    assert [path.name for path in base.iterdir()] == [name]


def test_a_refusal_after_a_first_commit_says_so(opened):
    """A new column may need two commits; an error at the second one says that the first exists."""
    store = opened()
    store.add(row(1))
    commits = []

    def overtake_at_the_second():
        commits.append(1)
        if len(commits) == 2:
            store._shared.writer_lock._fences.admit(store._shared.writer_lock._fences.newest() + 5, "of a successor")

    failpoints.arm("lancedb.before-commit", overtake_at_the_second)
    try:
        with pytest.raises((Fenced, LeaseLost)) as refused:
            store.add_columns({"extra": "1"})
    finally:
        failpoints.disarm_all()

    assert "was committed" in refused.value.__notes__[0]
    assert "extra" in store.schema.names


def test_without_a_lock_indices_are_folded_too(opened):
    """Without a lock the store counts its own operations instead of commits."""
    store = opened({"locking": {"mode": "off"}, "fold_after": 3})
    store.add(row(0))
    store.index_text("text")
    for number in range(1, 9):
        store.add(row(number))

    eventually(lambda: store.table.index_stats("text_idx").num_unindexed_rows < 3, 30, "the index to know of them")
