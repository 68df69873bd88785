"""Several processes write one LanceDB directory, in each lock domain: every row once, and never two inside."""

import json
from pathlib import Path

import pytest
from store_kit import row

from holdfast.testing import WorkerProcesses

CHILDREN = Path(__file__).with_name("store_children.py")
PROCESSES = 4


@pytest.fixture(scope="module")
def fleet():
    """Four processes that do what they are told; started once, because each has to import LanceDB."""
    with WorkerProcesses() as workers:
        started = [workers.start(f"{CHILDREN}:obey") for _ in range(PROCESSES)]
        for worker in started:
            worker.wait_ready(60)
        yield started


@pytest.fixture
def order(fleet, memory, locking, tmp_path, domain):
    """Have processes do things at the same time; their answers."""

    def ordered(*tasks, **more):
        config = {**locking(domain), **more}
        for worker, (task, arguments) in zip(fleet, tasks, strict=False):
            told = {"task": task, "arguments": arguments, "config": config}
            worker.send_line(json.dumps({**told, "directory": str(memory), "scratch": str(tmp_path)}))
        answers = [json.loads(worker.read_line(110)) for worker, _ in zip(fleet, tasks, strict=False)]
        assert [answer["error"] for answer in answers if "error" in answer] == []
        assert [answer["met"] for answer in answers] == [0] * len(tasks), "two were inside at once"
        assert [answer["overtaken"] for answer in answers] == [0] * len(tasks)
        return answers

    return ordered


@pytest.fixture
def rows(opened, locking, domain):
    """The ids in the table, as another process finds them."""

    def rows():
        store = opened(locking(domain))
        return sorted(found["id"] for found in store.table.to_arrow().to_pylist())

    return rows


@pytest.mark.acceptance("A0-1", "A0-20")
def test_four_processes_write_two_hundred_rows_and_never_meet(order, rows, memory, domain):
    """They start on an empty directory: one makes the table, the others open it. No lock but their own is touched."""
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
    """Fifty in each of four processes, at the same moment, with default options: no failure, no row lost or doubled."""
    answers = order(*[("write_at_once", {"who": who, "writers": 50}) for who in range(PROCESSES)])

    assert [answer["told"] for answer in answers] == [[]] * PROCESSES
    assert rows() == sorted(f"r{who}-{number}" for who in range(PROCESSES) for number in range(50))


@pytest.mark.acceptance("A0-21")
def test_two_processes_that_count_up_a_hundred_times_each_come_to_two_hundred(order, opened, locking, domain):
    """What is read under the lease is the newest there is, and nobody changes it before it is written."""
    store = opened(locking(domain))
    store.add({**row(0), "id": "counter"})

    order(("count_up", {"times": 100}), ("count_up", {"times": 100}))

    assert store.get("counter")["n"] == 200


@pytest.mark.acceptance("A0-19")
def test_index_work_maintenance_and_migration_never_meet_a_write(order, opened, locking, domain, memory):
    """They are mutations under the same lease; in the mode redis no lock in the directory is touched."""
    store = opened(locking(domain))
    store.add_many([row(f"x-{number}") for number in range(20)])

    answers = order(
        ("tend", {"rounds": 2}), ("write_each", {"who": "a", "rows": 15}), ("write_each", {"who": "b", "rows": 15})
    )

    assert [answer["told"] for answer in answers] == [2, 15, 15]
    assert store.count() == 50
    assert {"extra_0", "extra_1"} <= set(store.schema.names)
    assert (memory / ".holdfast").exists() == (domain == "file")
    assert (memory / ".holdfast.db").exists() == (domain == "embedded")
