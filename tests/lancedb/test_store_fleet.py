"""Several processes write one LanceDB directory, in each lock domain: every row once, never two writers at once."""

import json
from pathlib import Path

import pytest
from store_kit import row

from holdfast.testing import WorkerProcesses

CHILDREN = Path(__file__).with_name("store_children.py")
PROCESSES = 4


@pytest.fixture(scope="module")
def fleet():
    """Start four processes that execute tasks; once, because each must import LanceDB."""
    with WorkerProcesses() as workers:
        started = [workers.start(f"{CHILDREN}:obey") for _ in range(PROCESSES)]
        for worker in started:
            worker.wait_ready(60)
        yield started


@pytest.fixture
def order(fleet, memory, locking, tmp_path, domain):
    """Return a function that lets processes work at the same time and returns their answers."""

    def ordered(*tasks, **more):
        config = {**locking(domain), **more}
        for worker, (task, arguments) in zip(fleet, tasks, strict=False):
            order = {"task": task, "arguments": arguments, "config": config}
            worker.send_line(json.dumps({**order, "directory": str(memory), "scratch": str(tmp_path)}))
        answers = [json.loads(worker.read_line(110)) for worker, _ in zip(fleet, tasks, strict=False)]
        assert [answer["error"] for answer in answers if "error" in answer] == []
        assert [answer["met"] for answer in answers] == [0] * len(tasks), "two were inside at once"
        assert [answer["overtaken"] for answer in answers] == [0] * len(tasks)
        return answers

    return ordered


@pytest.fixture
def rows(opened, locking, domain):
    """Return a function that reads the ids in the table from another process."""

    def rows():
        store = opened(locking(domain))
        return sorted(found["id"] for found in store.table.to_arrow().to_pylist())

    return rows


@pytest.mark.acceptance("A0-1", "A0-20")
def test_four_processes_write_two_hundred_rows_and_never_overlap(order, rows, memory, domain):
    """They start on an empty directory: one creates the table, the others open it, and no other lock is used."""
    answers = order(*[("write_each", {"who": who, "rows": 50}) for who in range(PROCESSES)])

    assert rows() == sorted(f"r{who}-{number}" for who in range(PROCESSES) for number in range(50))
    assert sum(answer["entered"] for answer in answers) == 4 * 50 + 1
    if domain == "redis":
        assert {path.name for path in memory.iterdir()} == {
            "memories.lance",
            ".holdfast-domain",
            ".holdfast-fence.memories",
        }


@pytest.mark.acceptance("A0-2")
def test_two_hundred_concurrent_writers_all_succeed(order, rows):
    """Fifty writers in each of four processes, with defaults: no failure, no lost and no duplicate row."""
    answers = order(*[("write_at_once", {"who": who, "writers": 50}) for who in range(PROCESSES)])

    assert [answer["result"] for answer in answers] == [[]] * PROCESSES
    assert rows() == sorted(f"r{who}-{number}" for who in range(PROCESSES) for number in range(50))


@pytest.mark.acceptance("A0-21")
def test_two_processes_count_to_two_hundred_without_a_lost_update(order, opened, locking, domain):
    """A read under the lease returns the newest value, and no other writer changes it before the write."""
    store = opened(locking(domain))
    store.add({**row(0), "id": "counter"})

    order(("count_up", {"times": 100}), ("count_up", {"times": 100}))

    assert store.get("counter")["n"] == 200


@pytest.mark.acceptance("A0-19")
def test_index_work_maintenance_and_migration_never_overlap_a_write(order, opened, locking, domain, memory):
    """They are mutations under the same lease; in redis mode no lock file in the directory is used."""
    store = opened(locking(domain))
    store.add_many([row(f"x-{number}") for number in range(20)])

    answers = order(
        ("tend", {"rounds": 2}), ("write_each", {"who": "a", "rows": 15}), ("write_each", {"who": "b", "rows": 15})
    )

    assert [answer["result"] for answer in answers] == [2, 15, 15]
    assert store.count() == 50
    assert {"extra_0", "extra_1"} <= set(store.schema.names)
    assert (memory / ".holdfast").exists() == (domain == "file")
    assert (memory / ".holdfast.db").exists() == (domain == "embedded")
