"""The operations of a guarded store, through both faces."""

from datetime import timedelta

import pyarrow as pa
import pytest
from store_kit import SCHEMA, row, vector

from holdfast import Closed, InvalidConfig, NotFound, NotPermitted


def test_added_rows_are_found(store):
    """Added rows are found by key, vector and text, and counted."""
    first = store.add(row(1, "the user likes green tea"))
    many = store.add_many([row(number) for number in range(2, 12)])

    assert (first.rows, many.rows) == (1, 10)
    assert many.version > first.version
    assert many.fence > first.fence
    assert store.count() == 11
    assert store.count("id = 'r3'") == 1
    assert store.get("r1")["text"] == "the user likes green tea"
    assert store.get("absent") is None
    assert store.search(vector(1), limit=1)[0]["id"] == "r1"
    assert store.index_text("text")
    assert [found["id"] for found in store.search(text="tea")] == ["r1"]
    assert store.search(vector(1), "tea", limit=3)[0]["id"] == "r1"
    assert store.status().full_text == "ready"


def test_rows_are_replaced_changed_and_removed(store):
    """Upsert, update, read-modify-write, and delete by key or filter are one commit each."""
    store.add_many([row(number) for number in range(6)])

    store.upsert([row(0, "new text"), row(9)])
    store.update("r1", {"n": 7})
    changed = store.transform("n = 0", lambda found: {**found, "n": 1} if found["id"] != "r2" else None)
    gone = store.delete("r4", "r5", "absent")
    store.delete_where("n = 7")

    assert store.get("r0")["text"] == "new text"
    assert changed.rows == 5
    assert gone.rows == 2
    assert sorted((each["id"], each["n"]) for each in store.search(vector(0), limit=50)) == [
        ("r0", 1),
        ("r2", 0),
        ("r3", 1),
        ("r9", 1),
    ]


def test_a_call_without_changes_makes_no_version(store):
    """A version is a file that maintenance must remove later."""
    before = store.add(row(1)).version

    assert store.delete("absent")[:2] == (0, before)
    assert store.delete_where("n = 99").version == before
    assert store.transform(None, lambda found: found).version == before
    assert store.transform(None, lambda _: None).version == before


def test_an_unknown_key_cannot_be_updated(store):
    """The update creates no row."""
    store.add(row(1))

    with pytest.raises(NotFound):
        store.update("r2", {"n": 1})

    assert store.count() == 1


def test_columns_that_are_missing_are_added_once(store):
    """The store checks again under the lock, so a second call does nothing. Earlier rows have the column too."""
    store.add(row(1))

    assert store.add_columns({"importance": "cast(0.5 as float)", "n": "0"}) == ("importance",)
    assert store.add_columns({"importance": "cast(0.5 as float)"}) == ()
    store.add({**row(2), "importance": 0.9})
    store.add(row(3))

    assert [store.get(key)["importance"] for key in ("r1", "r3")] == [0.5, None]
    assert store.get("r2")["importance"] == pytest.approx(0.9)


def test_a_column_that_another_process_added_is_known_at_once(store, memory):
    """The store does not refuse rows because of an outdated schema."""
    import lance

    store.add(row(1))
    lance.dataset(str(memory / "memories.lance")).add_columns(pa.schema([("mood", pa.string())]))

    store.add({**row(2), "mood": "glad"})
    store.add(row(3))

    assert [store.get(key)["mood"] for key in ("r1", "r2", "r3")] == [None, "glad", None]


def test_vectors_can_be_indexed_and_the_table_maintained(store):
    """Index work and maintenance are mutations like any other."""
    store.add_many([row(number) for number in range(300)])

    store.index_vectors(kind="IVF_FLAT", num_partitions=2)
    store.index_vectors(kind="IVF_FLAT", num_partitions=2)
    store.add(row(300))
    store.fold()
    for number in range(3):
        store.add(row(301 + number))
    tidied = store.optimize()

    assert store.count() == 304
    assert tidied.files_after < tidied.files_before
    assert store.search(vector(7), limit=1)[0]["id"] == "r7"


BAD = [
    {"id": "x", "colour": "red"},
    {"id": "x", "n": "many"},
    {"id": "x", "vector": [1.0, 2.0]},
]


@pytest.mark.parametrize("bad", BAD, ids=["column", "type", "width"])
def test_a_row_that_does_not_fit_is_refused_before_any_lock(store, bad):
    """A mistake of one caller does not fail the others in its batch."""
    before = store.status().acquisitions

    for write in (store.add, store.upsert):
        with pytest.raises(InvalidConfig):
            write({**row(1), **bad})
    with pytest.raises(InvalidConfig):
        store.add_many([row(1), {**row(2), **bad}])
    with pytest.raises(InvalidConfig):
        store.update("r1", {key: value for key, value in bad.items() if key != "id"})

    assert store.status().acquisitions == before
    assert store.count() == 0


def test_invalid_searches_are_refused(store):
    """The refusal comes before any read or write."""
    with pytest.raises(InvalidConfig):
        store.search()
    with pytest.raises(InvalidConfig):
        store.search(vector(1), limit=0)
    with pytest.raises(InvalidConfig):
        store.delete_where("  ")
    with pytest.raises(InvalidConfig):
        store.delete(None)
    with pytest.raises(InvalidConfig):
        store.upsert([row(1), row(1)])
    with pytest.raises(InvalidConfig):
        store.optimize(timedelta(0))
    with pytest.raises(InvalidConfig):
        store.update("r1", {"id": "r2"})
    with pytest.raises(InvalidConfig):
        store.transform(None, "n + 1")


def test_a_key_cannot_break_out_of_its_filter(store):
    """Keys are data, never SQL."""
    store.add({**row(1), "id": "x' OR true --"})
    store.add(row(2))

    assert store.delete("x' OR true --").rows == 1
    assert store.count() == 1


def test_a_change_of_a_row_must_keep_its_key(store):
    """Otherwise a second row would appear and the old one would stay."""
    store.add(row(1))

    with pytest.raises(InvalidConfig):
        store.transform(None, lambda found: {**found, "id": "r2"})

    assert store.get("r1") is not None


def test_a_closed_store_refuses_everything_that_writes(store):
    """A second close does nothing."""
    store.close()
    store.close()

    with pytest.raises(Closed):
        store.add(row(1))


def test_a_missing_table_needs_a_schema(opened, memory):
    """A mistyped name creates no table, and the store never creates a directory."""
    with pytest.raises(NotFound):
        opened(schema=None)
    with pytest.raises(InvalidConfig):
        opened(directory=memory / "elsewhere")
    with pytest.raises(InvalidConfig):
        opened(table="../memories")

    assert not (memory / "memories.lance").exists()


def test_a_table_without_columns_of_the_schema_is_refused(opened):
    """The program fails when it starts, not hours later."""
    opened().close()

    with pytest.raises(InvalidConfig, match="mood"):
        opened(schema=SCHEMA.append(pa.field("mood", pa.string())))


def test_reads_of_the_table_itself_are_free_and_its_writes_are_not(opened):
    """All reads of LanceDB work; a write names the method of the store instead."""
    store = opened()
    store.add_many([row(number) for number in range(5)])
    table = store.table

    assert len(table) == 5
    assert table.search(vector(3)).limit(1).to_list()[0]["id"] == "r3"
    assert table.to_arrow().num_rows == 5
    with pytest.raises(NotPermitted, match="add_many"):
        table.add([row(9)])
    with pytest.raises(NotPermitted):
        table.to_lance()
    assert store.count() == 5
