"""Writers of one process share leases and commits, and each gets its own answer."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from store_kit import SCHEMA, row, together

from holdfast import Closed, LeaseLost, NotAcquired, PartlyDone, Unavailable, connect, failpoints
from holdfast.contrib.lancedb import aio
from holdfast.testing import eventually

CHILDREN = Path(__file__).with_name("store_children.py")


@pytest.fixture
def shut():
    """Return a function that makes commits wait, so that later callers join the write queue."""
    go, there = threading.Event(), threading.Event()

    def shut():
        failpoints.arm("lancedb.before-commit", lambda: (there.set(), go.wait(60)))
        return go, there

    yield shut
    go.set()
    failpoints.disarm_all()


def queued(store, there, calls):
    """Start calls so that the first waits before its commit and the others queue behind it, in this order."""
    callers = ThreadPoolExecutor(len(calls))
    answers = [callers.submit(calls[0])]
    assert there.wait(30)
    for number, call in enumerate(calls[1:], start=1):
        answers.append(callers.submit(call))
        eventually(lambda number=number: store.status().waiting == number, 30, "a caller in the line")
    callers.shutdown(wait=False)
    return answers


@pytest.mark.acceptance("A0-27")
def test_a_hundred_concurrent_writes_need_at_most_ten_leases(domain, opened, locking):
    """Concurrent calls share a lease."""
    store = opened(locking(domain))
    before = store.status().acquisitions

    answers = together([lambda n=n: store.add(row(n)) for n in range(100)])

    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    assert store.count() == 100
    assert store.status().acquisitions - before <= 10


@pytest.mark.acceptance("A0-28")
def test_a_chunk_that_fails_fails_its_own_callers_only(holdfast_workers, memory, locking):
    """The disk fails for the middle one of three chunks; the rows before and after it are there."""
    config = {**locking("embedded"), "batching": {"batch": 200}}
    child = holdfast_workers.start(f"{CHILDREN}:break_middle", directory=memory, config=config)

    report = json.loads(child.read_line(110))

    assert report["ended"][:200] == ["NoneType"] * 200
    assert set(report["ended"][200:400]) == {"OSError"}
    assert report["ended"][400:] == ["NoneType"] * 200
    assert report["ids"] == sorted(["rfirst", *(f"r{n}" for n in range(600) if not 200 <= n < 400)])


def test_the_error_says_that_nothing_was_committed(opened, monkeypatch):
    """The error itself says that the old row is unchanged."""
    from holdfast.contrib.lancedb import writing

    store = opened()
    store.add(row(1, "old"))
    monkeypatch.setattr(writing, "as_table", lambda rows, schema: 1 / 0)

    with pytest.raises(ZeroDivisionError) as failed:
        store.transform(None, lambda found: {**found, "n": 1})

    assert failed.value.__notes__ == ["nothing was committed: every row is as it was"]
    assert store.get("r1")["text"] == "old"


def test_a_single_caller_does_not_wait_for_a_batch(opened, locking):
    """The batch window applies to concurrent callers only: single callers are served at once."""
    store = opened({**locking("embedded"), "batching": {"window": 3600}})

    for number in range(5):
        store.add(row(number))

    assert store.count() == 5


def test_the_write_queue_has_a_maximum_length(opened, locking, shut):
    """The others wait for room in the queue."""
    store = opened({**locking("embedded"), "batching": {"queue": 4, "batch": 2}})
    go, there = shut()
    threads = [threading.Thread(target=store.add, args=(row(n),)) for n in range(12)]
    threads[0].start()
    assert there.wait(30)
    for thread in threads[1:]:
        thread.start()

    eventually(lambda: store.status().blocked == 7, 30, "seven callers outside")
    assert store.status().waiting == 4
    go.set()
    for thread in threads:
        thread.join(60)

    assert store.count() == 12
    assert (store.status().waiting, store.status().blocked) == (0, 0)


@pytest.mark.parametrize(("hold", "leases"), [(60, 2), (0, 4)])
def test_other_processes_get_their_turn(opened, locking, shut, hold, leases):
    """Queued calls share a lease up to its maximum hold time."""
    store = opened({**locking("embedded"), "batching": {"hold": hold}})
    store.add_many([row(n) for n in range(4)])
    before = store.status().acquisitions
    go, there = shut()
    answers = queued(store, there, [lambda n=n: store.update(f"r{n}", {"n": 1}) for n in range(4)])
    go.set()

    assert [answer.result(60).rows for answer in answers] == [1, 1, 1, 1]
    assert store.status().acquisitions - before == leases


def test_a_lease_that_is_lost_under_one_write_does_not_touch_the_next(opened, locking, shut):
    """One caller gets the loss; the next had not begun, and acquires the lock again."""
    kinds = []
    store = opened(locking("embedded", ttl=0.4), observer=lambda event: kinds.append(event.kind))
    store.add_many([row(n) for n in range(3)])
    go, there = shut()
    answers = queued(store, there, [lambda n=n: store.update(f"r{n}", {"n": 1}) for n in range(3)])
    commits = []

    def break_at_the_second():
        commits.append(1)
        if len(commits) == 2:
            store._shared._client.break_lease(store._shared.writer_lock.name, "by hand")
            eventually(lambda: "lost" in kinds, 30, "its holder to know")

    failpoints.arm("lancedb.in-commit", break_at_the_second)
    go.set()

    assert answers[0].result(60).rows == 1
    with pytest.raises(LeaseLost) as lost:
        answers[1].result(60)
    assert lost.value.result.rows == 1
    assert answers[2].result(60).fence > lost.value.fence
    assert store.count("n = 1") == 3


def test_a_task_cancelled_in_the_queue_has_written_nothing(memory, locking):
    """A queued call never starts; a started one finishes, so that its caller gets no false failure."""

    async def main():
        store = await aio.open_store(memory, "memories", locking("embedded"), schema=SCHEMA)
        go, there = threading.Event(), threading.Event()
        failpoints.arm("lancedb.before-commit", lambda: (there.set(), go.wait(60)))
        begun = asyncio.create_task(store.add(row(1)))
        await asyncio.to_thread(there.wait, 30)
        queued = asyncio.create_task(store.add(row(2)))
        await asyncio.to_thread(eventually, lambda: store.status().waiting, 30, "a task in the line")

        begun.cancel()
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        assert not begun.done(), "its write goes on, so it waits"
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await begun
        rows = [each["id"] for each in await store.search([0.0] * 8)]
        await store.close()
        return rows

    try:
        assert asyncio.run(main()) == ["r1"]
    finally:
        failpoints.disarm_all()


def test_two_hundred_tasks_of_one_loop_share_few_leases(memory, locking):
    """The loop continues meanwhile, and no call needs its own thread."""

    async def main():
        async with await aio.open_store(memory, "memories", locking("embedded"), schema=SCHEMA) as store:
            before = threading.active_count()
            await asyncio.gather(*(store.add(row(n)) for n in range(200)))
            assert threading.active_count() <= before + 8
            return await store.count(), store.status().acquisitions

    count, acquisitions = asyncio.run(main())

    assert count == 200
    assert acquisitions <= 10


@pytest.mark.acceptance("A0-4")
def test_a_caller_whose_timeout_ends_has_written_nothing(domain, opened, locking, memory):
    """Another holder keeps the lease until the timeout: `NotAcquired`, no row, and no fallback to another lock."""
    config = locking(domain, timeout=0.2)
    store = opened(config)
    with connect(str(store._shared.settings.url)) as other, other.lock(store._shared.writer_lock.name):
        for write in (lambda: store.add(row(1)), lambda: store.delete_where("true"), store.optimize):
            with pytest.raises(NotAcquired):
                write()

    assert store.count() == 0
    assert (memory / ".holdfast").exists() == (domain == "file")
    assert (memory / ".holdfast.db").exists() == (domain == "embedded")


@pytest.mark.acceptance("A0-5")
def test_without_its_engine_nothing_is_written_and_no_other_lock_is_tried(opened, memory, lease_server):
    """Each call raises; there is no second lock domain to fall back to."""
    config = {"locking": {"mode": "redis", "url": "redis://127.0.0.1:1", "timeout": 1}}

    for _ in range(2):
        with pytest.raises(Unavailable):
            opened(config)

    assert not (memory / "memories.lance").exists()
    assert not (memory / ".holdfast").exists()
    assert not (memory / ".holdfast.db").exists()


@pytest.mark.acceptance("A0-7")
def test_work_of_three_ttls_stays_ours(domain, opened, locking):
    """The lease of a slow commit is renewed, and no other process writes meanwhile."""
    store = opened(locking(domain, ttl=0.3))
    with connect(str(store._shared.settings.url)) as other:
        done = threading.Event()

        def linger():
            assert not done.wait(1.0)
            assert other.lock(store._shared.writer_lock.name).try_acquire() is None

        failpoints.arm("lancedb.before-commit", linger)
        try:
            assert store.add(row(1)).rows == 1
        finally:
            failpoints.disarm_all()


def test_a_bulk_job_stops_after_failures_in_a_row(opened, locking, monkeypatch):
    """A full disk or a held lock is tried three times, not a thousand; the error lists the finished parts."""
    from holdfast.contrib.lancedb import writing

    store = opened({**locking("embedded"), "batching": {"batch": 10}})
    append, calls = writing.append, []

    def failing(access, tables):
        calls.append(access)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        return append(access, tables)

    monkeypatch.setattr(writing, "append", failing)

    with pytest.raises(PartlyDone) as stopped:
        store.add_many([row(n) for n in range(200)])

    assert (stopped.value.done, stopped.value.left) == (20, 150)
    assert [(first, rows) for first, rows, _ in stopped.value.failed] == [(20, 10), (30, 10), (40, 10)]
    assert len(calls) == 5
    assert store.count() == 20


def test_a_failure_between_two_successes_does_not_stop_a_bulk_job(opened, locking, monkeypatch):
    """Only consecutive failures stop the job. The error names the failed part for a retry."""
    from holdfast.contrib.lancedb import writing

    store = opened({**locking("embedded"), "batching": {"batch": 10}})
    append, calls = writing.append, []

    def failing(access, tables):
        calls.append(access)
        if len(calls) in (2, 4):
            raise OSError(5, "Input/output error")
        return append(access, tables)

    monkeypatch.setattr(writing, "append", failing)
    rows = [row(n) for n in range(60)]

    with pytest.raises(PartlyDone) as partly:
        store.add_many(rows)
    for first, size, _ in partly.value.failed:
        store.add_many(rows[first : first + size])

    assert (partly.value.done, partly.value.left) == (40, 0)
    assert store.count() == 60


@pytest.mark.acceptance("A0-16", "A0-17")
def test_closing_serves_queued_callers_and_refuses_the_rest(opened, shut):
    """`close` returns after the last queued caller has its answer."""
    store = opened()
    go, there = shut()
    answers = []
    threads = [threading.Thread(target=lambda n=n: answers.append(store.add(row(n)))) for n in range(5)]
    for thread in threads:
        thread.start()
    assert there.wait(30)
    shared = store._shared
    eventually(
        lambda: shared.write_queue.waiting >= 1 or len(shared.write_queue._jobs) + 1 >= 5, 30, "callers in the line"
    )
    closing = threading.Thread(target=store.close)
    closing.start()
    eventually(lambda: shared.write_queue._closing, 30, "the line to be closing")

    with pytest.raises(Closed):
        store.add(row(9))
    assert closing.is_alive()
    go.set()
    closing.join(60)
    for thread in threads:
        thread.join(60)

    assert not closing.is_alive()
    assert len(answers) == 5
    again = opened()
    assert again.count() == 5


def test_closing_does_not_wait_for_a_held_lease(opened, locking):
    """After its timeout the waiting callers get `Closed`, and nothing was written for them."""
    store = opened(locking("embedded"))
    with connect(str(store._shared.settings.url)) as other, other.lock(store._shared.writer_lock.name):
        answers = []

        def write():
            with pytest.raises(Closed):
                store.add(row(1))
            answers.append("closed")

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: store._shared._client.show(store._shared.writer_lock.name).waiters, 30, "one who waits")
        store.close(timeout=0.1)
        for thread in threads:
            thread.join(30)

    assert answers == ["closed"] * 3
    assert opened().count() == 0
