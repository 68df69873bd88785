"""Nothing that one caller does keeps the others waiting: not what its work raises, nor when it leaves."""

import asyncio
import sys
import threading

import pytest
from store_kit import SCHEMA, row

from holdfast import DomainMismatch, NotPermitted, connect, failpoints
from holdfast.contrib.lancedb import aio
from holdfast.contrib.lancedb import shared_table as shared_tables
from holdfast.testing import eventually


class Odd(BaseException):
    """No `Exception`, as those that end a program."""


@pytest.mark.parametrize(("raised", "told"), [(Odd, Odd), (StopIteration, RuntimeError)])
def test_whatever_a_change_raises_goes_to_its_caller_and_ends_nothing_else(store, raised, told):
    """The thread that raised it serves everybody: it goes on."""
    store.add(row(1))

    def change(_):
        raise raised

    with pytest.raises(told):
        store.transform(None, change)

    assert store.add(row(2)).rows == 1
    assert store.count() == 2


def test_a_change_that_ends_the_program_ends_its_callers(opened):
    """`sys.exit` means the thread that asked for it."""
    store = opened()
    store.add(row(1))

    with pytest.raises(SystemExit) as ended:
        store.transform(None, lambda _: sys.exit(3))

    assert ended.value.code == 3
    assert store.add(row(2)).rows == 1


def test_a_write_inside_of_a_write_is_refused(opened):
    """It would stand in the line behind itself, for ever, and everybody else behind it."""
    store = opened()
    store.add(row(1))

    with pytest.raises(NotPermitted):
        store.transform(None, lambda _: store.add(row(2)))
    with pytest.raises(NotPermitted):
        store.transform(None, lambda _: store.close())

    assert store.add(row(3)).rows == 1
    assert store.count() == 2


def test_closing_ends_with_its_patience_whatever_is_being_written(opened):
    """The work goes on without it, and is told to whoever asked for it."""
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
    """Nothing was begun for it, and nothing is."""

    async def main():
        async with await aio.open_store(memory, "memories", locking("embedded"), schema=SCHEMA) as store:
            with connect(str(store._shared.settings.url)) as other, other.lock(store._shared.writer_lock.name):
                adding = asyncio.create_task(store.add(row(1)))
                client = store._shared._client
                await asyncio.to_thread(
                    eventually, lambda: client.show(store._shared.writer_lock.name).waiters, 30, "one who waits"
                )
                adding.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(asyncio.shield(adding), 30)
            await store.add(row(2))
            return [each["id"] for each in await store.search([0.0] * 8)]

    assert asyncio.run(main()) == ["r2"]


def test_a_store_whose_opening_was_cancelled_is_not_open(memory, locking):
    """Nobody has it, so that nobody could close it."""

    async def main():
        opening = asyncio.create_task(aio.open_store(memory, "memories", locking("embedded"), schema=SCHEMA))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(main())

    assert [shared for shared in shared_tables._shared_tables.values() if shared.directory == memory] == []


def test_who_writes_without_a_lock_stops_when_somebody_begins_to_guard(memory, opened):
    """It was opened before the mark came."""
    unguarded = opened("off")
    unguarded.add(row(1))
    with connect(f"sqlite://{memory}/.holdfast.db") as client:
        client.domain(memory)  # as another process does that opens a guarded store

    with pytest.raises(DomainMismatch):
        unguarded.delete_where("true")

    assert unguarded.count() == 1


def test_rows_that_were_written_before_the_lease_was_lost_are_counted_as_written(opened, locking):
    """Whoever sends again what `PartlyDone` names must not write a row twice."""
    told = []
    store = opened({**locking("embedded"), "batching": {"batch": 10}}, observer=lambda event: told.append(event.kind))
    commits = []

    def break_at_the_second():
        commits.append(1)
        if len(commits) == 2:
            store._shared._client.break_lease(store._shared.writer_lock.name, "by hand")
            eventually(lambda: "lost" in told, 30, "its holder to know")

    failpoints.arm("lancedb.in-commit", break_at_the_second)
    try:
        written = store.add_many([row(n) for n in range(30)])
    finally:
        failpoints.disarm_all()

    assert "lost" in told
    assert written.rows == store.count() == 30


@pytest.mark.parametrize(
    ("part", "name"),
    [("batching", "batch"), ("batching", "hold"), ("maintenance", "interval"), ("locking", "ttl"), ("", "fold_after")],
)
def test_a_number_that_is_left_empty_is_the_default(opened, locking, part, name):
    """As in a file of which a line was begun: it neither fails the first write nor ends the thread that serves."""
    config = {**locking("embedded"), "maintenance": {"enabled": True, "first": 0}}
    target = config if not part else config.setdefault(part, {})
    target[name] = None
    store = opened(config)

    store.add(row(1))
    eventually(lambda: store.status().maintenance_runs or store.status().trouble, 30, "the maintenance that is due")
    assert store.add(row(2)).rows == 1
