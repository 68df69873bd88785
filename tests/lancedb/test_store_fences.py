"""The store refuses a late writer at the commit, whatever it was doing."""

import threading
from datetime import timedelta
from pathlib import Path

import lance
import pytest
from store_kit import SCHEMA, row

from holdfast import Fenced, LeaseLost, Unavailable, failpoints
from holdfast.contrib.lancedb import fence
from holdfast.contrib.lancedb.fence import FenceFile
from holdfast.contrib.lancedb.writer_lock import FENCE_FILE
from holdfast.testing import eventually
from tests.support.places import SqlitePlace

CHILDREN = f"{Path(__file__).with_name('store_children.py')}"
NEWER = 2**52

MUTATIONS = {
    "add": lambda store: store.add(row(500)),
    "add_many": lambda store: store.add_many([row(500), row(501)]),
    "upsert": lambda store: store.upsert(row(1, "late")),
    "update": lambda store: store.update("r1", {"n": 5}),
    "transform": lambda store: store.transform(None, lambda found: {**found, "n": 5}),
    "delete": lambda store: store.delete("r1"),
    "delete_where": lambda store: store.delete_where("true"),
    "add_columns": lambda store: store.add_columns({"late": "1"}),
    "index_vectors": lambda store: store.index_vectors(kind="IVF_FLAT", num_partitions=1),
    "index_text": lambda store: store.index_text("text"),
    "fold": lambda store: store.fold(),
    "optimize": lambda store: store.optimize(timedelta(days=7)),
}


@pytest.fixture
def fences(memory):
    return FenceFile(memory / f"{FENCE_FILE}.memories", "memories")


@pytest.fixture
def overtaken(fences):
    """Let a successor come between the last check of the lease and the commit."""
    failpoints.arm("lancedb.before-commit", lambda: fences.admit(NEWER, "successor"))
    yield
    failpoints.disarm_all()


@pytest.mark.acceptance("A0-10")
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_no_mutation_commits_after_a_successor_has_come(opened, memory, fences, mutation):
    """The lock that Lance takes for a new version refuses each mutation, and nothing of it is visible."""
    store = opened()
    store.add_many([row(number) for number in range(20)])
    store.index_text("text")
    store.add(row(20))
    before = lance.dataset(str(memory / "memories.lance")).version
    failpoints.arm("lancedb.before-commit", lambda: fences.admit(NEWER, "successor"))
    try:
        with pytest.raises(Fenced) as refused:
            MUTATIONS[mutation](store)
    finally:
        failpoints.disarm_all()

    assert refused.value.newest == NEWER
    assert lance.dataset(str(memory / "memories.lance")).version == before
    with pytest.raises(Fenced):
        store.add(row(600))


def test_a_table_is_not_made_after_a_successor_has_come(opened, memory, overtaken):
    """Creating a table is a commit like any other."""
    with pytest.raises(Fenced):
        opened()

    assert not list(memory.glob("memories.lance/_versions/*.manifest"))


def test_the_fence_is_recorded_before_the_table_is_read(opened, fences):
    """A writer that reads, computes and writes must know that no older writer can change the rows it read."""
    store = opened()
    store.add(row(1, n=1))
    seen = []

    def change(found):
        with pytest.raises(Fenced):
            fences.admit(written.fence, "older")
        seen.append(fences.newest())
        return {**found, "n": found["n"] + 1}

    written = store.add(row(2))
    after = store.transform("id = 'r1'", change)

    assert seen == [after.fence]
    assert after.fence > written.fence


def test_equal_fences_of_two_tokens_are_two_holders(tmp_path):
    """After a split two servers may give the same fence; only the first token may write."""
    fences = FenceFile(tmp_path / "fence", "x")
    fences.admit(7, "ann")
    fences.admit(7, "ann")

    with pytest.raises(Fenced):
        fences.admit(7, "ben")
    with pytest.raises(Fenced):
        fences.admit(6, "ann")
    fences.admit(8, "ben")

    assert fences.newest() == 8


def test_an_unreadable_fence_record_lets_no_writer_in(tmp_path):
    """The store does not overwrite an unreadable record."""
    path = tmp_path / "fence"
    path.write_text("once upon a time")

    with pytest.raises(Unavailable, match="corrupt"):
        FenceFile(path, "x").admit(7, "ann")

    assert path.read_text() == "once upon a time"


def test_a_replaced_fence_file_does_not_count(tmp_path, monkeypatch):
    """If another process replaces the file between open and lock, two writers could hold two different locks."""
    path = tmp_path / "fence"
    flock, removed = fence.fcntl.flock, []

    def removing(descriptor, operation):
        if not removed:
            removed.append(path.unlink())
            path.touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fence.fcntl, "flock", removing)
    with FenceFile(path, "x").held(7, "ann"), pytest.raises(Unavailable):
        FenceFile(path, "x", standstill_s=0.05).admit(8, "ben")

    assert FenceFile(path, "x").newest() == 7


def test_the_error_names_a_process_that_is_frozen_in_a_commit(tmp_path):
    """Others wait, and then get an error that names the frozen process; nothing was written."""
    with FenceFile(tmp_path / "fence", "x").held(7, "ann", "ann:42"), pytest.raises(Unavailable) as stalled:
        FenceFile(tmp_path / "fence", "x", standstill_s=0.05).admit(8, "ben")

    assert stalled.value.reason == "stalled"
    assert "ann:42" in str(stalled.value)


@pytest.fixture
def sleeper(holdfast_workers, holdfast_pauses, memory, locking, opened):
    """Start a process that is frozen at a point of its write, and continues after the thaw."""

    def start(domain, point, ttl=1.0):
        more = {"url": f"sqlite://{memory}/leases.db"} if domain == "embedded" else {}
        config = locking(domain, ttl=ttl, **more)
        opened(config).close()  # so that the first commit of the child is its write, not the creation of the table
        holdfast_pauses.arm(point)
        child = holdfast_workers.start(
            f"{CHILDREN}:write_one", env=holdfast_pauses.env, directory=memory, config=config, number=1
        )
        child.wait_ready(60)
        holdfast_pauses.wait_reached(point, 60)
        _freeze(child, memory, domain)
        return child, config

    return start


def _freeze(child, memory, domain):
    """Wait until its keeper is outside of SQLite's gate, which would block all other processes."""
    place = SqlitePlace(memory)
    child.freeze()
    while domain == "embedded" and place.is_blocked_by(child.pid):
        child.thaw()
        child.freeze()


@pytest.mark.acceptance("A0-10")
def test_a_writer_frozen_past_its_ttl_is_refused_and_its_successors_rows_are_intact(
    domain, sleeper, opened, memory, holdfast_pauses
):
    """The writer froze after its last check of the lease, so only the store can refuse it."""
    point = "lancedb.before-commit"
    child, config = sleeper(domain, point)
    holdfast_pauses.disarm(point)
    store = opened(config)

    store.add_many([row(number) for number in range(10, 20)])
    version = store.table.version
    child.thaw()
    holdfast_pauses.go(point)

    report = child.read_line(60)
    assert report.startswith("LeaseLost None Fenced"), report
    assert sorted(found["id"] for found in store.table.to_arrow().to_pylist()) == [f"r{n}" for n in range(10, 20)]
    assert store.table.version == version


@pytest.mark.acceptance("A0-10")
def test_a_writer_frozen_in_the_middle_of_a_commit_holds_the_store_until_it_wakes(
    domain, sleeper, opened, holdfast_pauses
):
    """The writer held the lease when it began: its rows are there, it learns of the loss, the next one continues."""
    point = "lancedb.in-commit"
    child, config = sleeper(domain, point)
    holdfast_pauses.disarm(point)
    store = opened(config)
    answers = []
    successor = threading.Thread(target=lambda: answers.append(store.add(row(2))))
    successor.start()
    eventually(lambda: store.status().acquisitions >= 1, 30, "the successor to have the lease")
    assert not answers

    child.thaw()
    holdfast_pauses.go(point)
    successor.join(60)

    report = child.read_line(60)
    assert report.startswith("LeaseLost 1 None"), report
    assert [written.rows for written in answers] == [1]
    assert sorted(found["id"] for found in store.table.to_arrow().to_pylist()) == ["r1", "r2"]


def test_a_writer_killed_in_the_middle_of_a_commit_delays_no_other(sleeper, opened, holdfast_pauses):
    """The kernel releases its lock, and uncommitted rows are not there."""
    point = "lancedb.in-commit"
    child, config = sleeper("file", point)
    holdfast_pauses.disarm(point)
    child.kill()
    store = opened(config)

    store.add(row(2))

    assert [found["id"] for found in store.table.to_arrow().to_pylist()] == ["r2"]


@pytest.mark.acceptance("A0-8")
def test_the_error_of_a_lease_broken_during_the_work_counts_the_written_rows(domain, opened, locking):
    """The rows were committed before a newer holder came; the error contains both facts."""
    store = opened(locking(domain))
    lease_name = store._shared.writer_lock.name
    failpoints.arm("lancedb.in-commit", lambda: store._shared._client.break_lease(lease_name, "by hand"))
    try:
        with pytest.raises(LeaseLost) as lost:
            store.add(row(1))
    finally:
        failpoints.disarm_all()

    assert lost.value.reason == "broken"
    assert lost.value.result.rows == 1
    assert store.count() == 1
    assert lance.dataset(str(store.directory / "memories.lance")).version == lost.value.result.version
    assert SCHEMA.names == store.schema.names


@pytest.mark.acceptance("A0-9")
def test_a_lost_lease_outweighs_the_error_of_the_work_and_carries_it(opened):
    """The error contains both, and says that nothing was committed."""
    store = opened()
    store.add(row(1))

    def change(_):
        store._shared._client.break_lease(store._shared.writer_lock.name, "by hand")
        return 1 / 0

    with pytest.raises(LeaseLost) as lost:
        store.transform(None, change)

    assert isinstance(lost.value.__cause__, ZeroDivisionError)
    assert lost.value.result is None
    assert store.get("r1")["n"] == 0
