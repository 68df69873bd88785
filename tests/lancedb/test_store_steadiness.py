"""No caller delays the others: neither by an error of its work nor by leaving."""

import asyncio
import sys
import threading

import pytest
from store_kit import SCHEMA, row

import holdfast.aio
from holdfast import DomainMismatch, NotPermitted, connect, failpoints
from holdfast.contrib.lancedb import aio
from holdfast.contrib.lancedb import shared_table as shared_tables
from holdfast.testing import eventually


class Odd(BaseException):
    """A `BaseException` that ends a program."""


@pytest.mark.parametrize(("raised", "expected"), [(Odd, Odd), (StopIteration, RuntimeError)])
def test_an_error_of_a_change_reaches_its_caller_only(store, raised, expected):
    """The writer thread serves all callers, so it survives the error."""
    store.add(row(1))

    def change(_):
        raise raised

    with pytest.raises(expected):
        store.transform(None, change)

    assert store.add(row(2)).rows == 1
    assert store.count() == 2


def test_a_change_that_ends_the_program_ends_its_callers(opened):
    """`sys.exit` ends the calling thread only."""
    store = opened()
    store.add(row(1))

    with pytest.raises(SystemExit) as ended:
        store.transform(None, lambda _: sys.exit(3))

    assert ended.value.code == 3
    assert store.add(row(2)).rows == 1


def test_a_write_inside_of_a_write_is_refused(opened):
    """A nested write would wait behind itself for ever, with all others behind it."""
    store = opened()
    store.add(row(1))

    with pytest.raises(NotPermitted):
        store.transform(None, lambda _: store.add(row(2)))
    with pytest.raises(NotPermitted):
        store.transform(None, lambda _: store.close())

    assert store.add(row(3)).rows == 1
    assert store.count() == 2


def test_closing_ends_with_its_timeout_during_a_write(opened):
    """The work continues, and its caller gets the result."""
    store = opened()
    store.add(row(1))
    begun, go, answers = threading.Event(), threading.Event(), []

    def change(_):
        begun.set()
        go.wait(60)

    def write():
        try:
            answers.append(store.transform(None, change))
        except Exception as error:
            answers.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(30)

    store.close(timeout=0.1)

    assert answers == []
    assert opened().count() == 1
    go.set()
    writer.join(30)
    assert len(answers) == 1


def test_a_task_that_is_cancelled_before_it_has_the_lease_leaves_at_once(memory, locking):
    """The store never starts its work."""

    async def main():
        async with await aio.open_store(memory, "memories", locking("embedded"), schema=SCHEMA) as store:
            name = store._shared.writer_lock.name
            async with await holdfast.aio.connect(str(store._shared.settings.url)) as other, other.lock(name):
                adding = asyncio.create_task(store.add(row(1)))
                client = store._shared._client
                await asyncio.to_thread(eventually, lambda: client.show(name).waiters, 30, "one who waits")
                adding.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(asyncio.shield(adding), 30)
            await store.add(row(2))
            return [each["id"] for each in await store.search([0.0] * 8)]

    assert asyncio.run(main()) == ["r2"]


def test_a_cancelled_open_leaves_no_open_store(memory, locking):
    """No caller has the store, so none could close it."""

    async def main():
        opening = asyncio.create_task(aio.open_store(memory, "memories", locking("embedded"), schema=SCHEMA))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(main())

    assert [shared for shared in shared_tables._shared_tables.values() if shared.directory == memory] == []


def test_a_writer_without_a_lock_stops_when_a_guarded_store_opens(memory, opened):
    """The store was opened before the marker existed."""
    unguarded = opened("off")
    unguarded.add(row(1))
    with connect(f"sqlite://{memory}/.holdfast.db") as client:
        client.domain(memory)  # as another process that opens a guarded store

    with pytest.raises(DomainMismatch):
        unguarded.delete_where("true")

    assert unguarded.count() == 1


def test_rows_that_were_written_before_the_lease_was_lost_are_counted_as_written(opened, locking):
    """A retry of the rows that `PartlyDone` names must not write a row twice."""
    kinds = []
    store = opened({**locking("embedded"), "batching": {"batch": 10}}, observer=lambda event: kinds.append(event.kind))
    commits = []

    def break_at_the_second():
        commits.append(1)
        if len(commits) == 2:
            store._shared._client.break_lease(store._shared.writer_lock.name, "by hand")
            eventually(lambda: "lost" in kinds, 30, "its holder to know")

    failpoints.arm("lancedb.in-commit", break_at_the_second)
    try:
        written = store.add_many([row(n) for n in range(30)])
    finally:
        failpoints.disarm_all()

    assert "lost" in kinds
    assert written.rows == store.count() == 30


@pytest.mark.parametrize(
    ("part", "name"),
    [("batching", "batch"), ("batching", "hold"), ("maintenance", "interval"), ("locking", "ttl"), ("", "fold_after")],
)
def test_an_empty_number_means_the_default(opened, locking, part, name):
    """An empty setting neither fails the first write nor ends the writer thread."""
    config = {**locking("embedded"), "maintenance": {"enabled": True, "first": 0}}
    target = config if not part else config.setdefault(part, {})
    target[name] = None
    store = opened(config)

    store.add(row(1))
    eventually(lambda: store.status().maintenance_runs or store.status().trouble, 30, "the maintenance that is due")
    assert store.add(row(2)).rows == 1
