"""Indices, full text that fails, folding and maintenance."""

import logging
from datetime import timedelta

import lance
import pytest
from store_kit import row, vector

from holdfast import NotAcquired, Unavailable, connect
from holdfast.contrib.lancedb import writing
from holdfast.core.step import run
from holdfast.testing import eventually


def test_a_full_text_index_that_fails_leaves_search_by_vector_and_a_status(store, caplog):
    """Every search that went without it is counted and told; text alone cannot be searched, and says why."""
    caplog.set_level(logging.WARNING, "holdfast")
    store.add_many([row(number) for number in range(5)])

    assert not store.index_text("vector")
    assert store.status().full_text.startswith("failed: ")
    found = [store.search(vector(3), "memory", limit=1)[0]["id"] for _ in range(2)]
    with pytest.raises(Unavailable, match="full-text"):
        store.search(text="memory")

    assert found == ["r3", "r3"]
    assert store.status().degraded == 2
    assert len([record for record in caplog.records if "by vectors alone" in record.message]) >= 3
    assert store.index_text("text")
    assert store.search(vector(3), "memory", limit=1)[0]["id"] == "r3"
    assert store.status().full_text == "ready"


def test_what_the_gate_says_is_never_taken_for_a_failed_index(opened, locking):
    """An index that could not be made because the lease was another's is no failed index."""
    store = opened(locking("embedded", timeout=0.1))
    with (
        connect(str(store._shared.settings.url)) as hf,
        hf.lock(store._shared.writer_lock.name),
        pytest.raises(NotAcquired),
    ):
        store.index_text("text")

    assert store.status().full_text == "unknown"


def unindexed(store):
    dataset = lance.dataset(str(store.directory / "memories.lance"))
    return dataset.stats.index_stats("text_idx")["num_unindexed_rows"]


def test_indices_are_folded_after_so_many_commits(opened, locking):
    """Without anybody asking: rows that came after the index was made are in it."""
    store = opened({**locking("embedded"), "fold_after": 5})
    store.add(row(0))
    store.index_text("text")
    for number in range(1, 12):
        store.add(row(number))

    eventually(lambda: unindexed(store) < 5, 30, "the new rows to be in the index")


def test_what_came_while_nobody_folded_is_folded_at_the_start(opened, locking):
    """Writers that fold nothing leave an index behind: whoever opens the store next has it caught up, unasked."""
    lazy = opened({**locking("embedded"), "fold_after": 0})
    lazy.add(row(0))
    lazy.index_text("text")
    lazy.add_many([row(number) for number in range(1, 26)])
    assert unindexed(lazy) == 25
    lazy.close()

    store = opened({**locking("embedded"), "fold_after": 20})

    eventually(lambda: unindexed(store) == 0, 30, "the index to be caught up")


def test_old_versions_are_removed_and_newer_ones_stay(opened, memory):
    """What is older than the retention, and nothing else; the rows are all there after it."""
    store = opened()
    for number in range(5):
        store.add(row(number))
    path = str(memory / "memories.lance")
    versions = len(lance.dataset(path).versions())

    kept = store.optimize(timedelta(days=7))
    gone = run(store._do(writing.optimize, timedelta(0)))

    assert kept.versions_removed == 0
    assert gone.versions_removed >= versions
    assert len(lance.dataset(path).versions()) == 1
    assert store.count() == 5


def test_maintenance_comes_by_itself_when_it_is_asked_for(opened, locking):
    """Through the same gate, again and again; a failure of it is told, stays to be seen, and is tried again."""
    maintenance = {"enabled": True, "first": 0.05, "interval": 1}
    store = opened({**locking("embedded", timeout=0.1), "maintenance": maintenance})
    eventually(lambda: store.status().maintenance_runs >= 1, 30, "maintenance")

    with connect(str(store._shared.settings.url)) as hf, hf.lock(store._shared.writer_lock.name):
        eventually(lambda: store.status().trouble, 30, "a failure to be told")
        assert store.status().trouble.startswith("maintenance failed: lease 'lancedb/")
    done = store.status().maintenance_runs
    eventually(lambda: store.status().maintenance_runs > done, 30, "another try")

    assert store.status().trouble == ""


def test_versions_made_past_the_gate_are_noticed(opened, memory, caplog, monkeypatch):
    """Whoever writes the directory without the store is seen by those who write with it, when they meet."""
    caplog.set_level(logging.WARNING, "holdfast")
    store = opened()
    path = str(memory / "memories.lance")

    def overtaken(access, tables):
        dataset = access.dataset()
        lance.write_dataset(tables[0], path, mode="append")
        written = lance.write_dataset(tables[0], dataset, mode="append")
        return writing.Written(1, written.version, access.fence)

    monkeypatch.setattr(writing, "append", overtaken)
    store.add(row(1))

    assert store.status().foreign_commits == 1
    assert "past its gate" in caplog.text
    assert store.count() == 2
