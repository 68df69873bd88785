"""Indices, a failing full-text index, index optimisation and maintenance."""

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
    """Each search without the index is counted and logged; a search by text alone raises with the reason."""
    caplog.set_level(logging.WARNING, "holdfast")
    store.add_many([row(number) for number in range(5)])

    assert not store.index_text("vector")
    assert store.status().full_text.startswith("failed: ")
    found = [store.search(vector(3), "memory", limit=1)[0]["id"] for _ in range(2)]
    with pytest.raises(Unavailable, match="full-text"):
        store.search(text="memory")

    assert found == ["r3", "r3"]
    assert store.status().degraded == 2
    assert len([record for record in caplog.records if "vectors only" in record.message]) >= 3
    assert store.index_text("text")
    assert store.search(vector(3), "memory", limit=1)[0]["id"] == "r3"
    assert store.status().full_text == "ready"


def test_an_error_of_the_lock_is_no_failed_index(opened, locking):
    """An index that waits for the lease is no failed index."""
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


def test_indices_are_optimised_after_some_commits(opened, locking):
    """The store adds later rows to the index by itself."""
    store = opened({**locking("embedded"), "fold_after": 5})
    store.add(row(0))
    store.index_text("text")
    for number in range(1, 12):
        store.add(row(number))

    eventually(lambda: unindexed(store) < 5, 30, "the new rows to be in the index")


def test_outdated_indices_are_optimised_at_the_start(opened, locking):
    """Writers without optimisation leave an outdated index; the next open updates it."""
    lazy = opened({**locking("embedded"), "fold_after": 0})
    lazy.add(row(0))
    lazy.index_text("text")
    lazy.add_many([row(number) for number in range(1, 26)])
    assert unindexed(lazy) == 25
    lazy.close()

    store = opened({**locking("embedded"), "fold_after": 20})

    eventually(lambda: unindexed(store) == 0, 30, "the index to be caught up")


def test_old_versions_are_removed_and_newer_ones_stay(opened, memory):
    """It removes only versions older than the retention; all rows stay."""
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


def test_configured_maintenance_runs_by_itself(opened, locking):
    """Maintenance repeats under the same lock; a failure is logged, stays in the status, and is retried."""
    maintenance = {"enabled": True, "first": 0.05, "interval": 1}
    store = opened({**locking("embedded", timeout=0.1), "maintenance": maintenance})
    eventually(lambda: store.status().maintenance_runs >= 1, 30, "maintenance")

    with connect(str(store._shared.settings.url)) as hf, hf.lock(store._shared.writer_lock.name):
        eventually(lambda: store.status().trouble, 30, "a failure in the status")
        assert store.status().trouble.startswith("maintenance failed: lease 'lancedb/")
    done = store.status().maintenance_runs
    eventually(lambda: store.status().maintenance_runs > done, 30, "another try")

    assert store.status().trouble == ""


def test_versions_made_without_the_store_are_detected(opened, memory, caplog, monkeypatch):
    """A writer of the store notices versions that were made without it."""
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
    assert "without the writer lock" in caplog.text
    assert store.count() == 2
