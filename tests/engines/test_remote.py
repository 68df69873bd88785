"""The base of remote transactional engines: lost replies, broken connections, restarts, and tasks without a thread."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

import pytest
from hub_server import Hub

import holdfast
from holdfast import NotAcquired, Unavailable, aio
from holdfast.commands import Acquire, Granted, Show
from holdfast.core.step import run
from holdfast.engines.remote import packed, unpacked
from holdfast.rules.lease_record import HolderRecord, MemoryTombstones, Record, Tombstone, Waiter, Waiters
from holdfast.testing import eventually

PACKAGE = Path(__file__).with_name("minimal_engine")


@pytest.fixture
def hub(monkeypatch):
    """A server, whose engine package is on the path."""
    monkeypatch.setattr("holdfast.engines.schemes.ENGINES", {"hub": "holdfast_hub"})
    monkeypatch.setattr(sys, "path", [str(PACKAGE), *sys.path])
    server = Hub()
    yield server
    server.close()


@pytest.fixture
def connect(hub):
    """Clients of the server, closed at the end."""
    clients = []

    def connect(**options):
        clients.append(holdfast.connect(hub.url, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close(timeout=0)


def test_a_lease_excludes_other_clients_and_its_fences_grow(connect):
    """The rules decide, as on every engine."""
    one, other = connect(), connect()
    with one.lock("x") as lease:
        with pytest.raises(NotAcquired):
            other.lock("x").acquire(timeout=0)
        assert other.show("x").fence == lease.fence
    with other.lock("x", timeout=1) as later:
        assert later.fence > lease.fence


def test_a_release_wakes_a_waiter_of_another_client(connect):
    """The server sends a notification when the transaction commits."""
    one, other = connect(), connect()
    lease, got = one.lock("x").acquire(), []
    waiter = threading.Thread(target=lambda: got.append((other.lock("x").acquire(), time.monotonic())))
    waiter.start()
    eventually(lambda: len(one.show("x").waiters) == 1)
    time.sleep(0.3)
    lease.release()
    released = time.monotonic()
    waiter.join(10)

    assert got[0][1] - released < 0.5
    got[0][0].release()


def test_waiters_poll_where_the_server_sends_no_notifications(connect, hub, monkeypatch):
    """Waiting is slower then, and does not fail."""
    one, other = connect(), connect()
    monkeypatch.setattr(type(one._client.engine), "subscribe", lambda *_: None)
    lease, got = one.lock("x").acquire(), []
    waiter = threading.Thread(target=lambda: got.append(other.lock("x").acquire(timeout=20)))
    waiter.start()
    eventually(lambda: len(one.show("x").waiters) == 1)
    lease.release()
    waiter.join(10)

    assert got[0].fence > lease.fence
    got[0].release()


def test_a_waiter_polls_while_the_subscription_fails(connect, hub, monkeypatch):
    """The error of a hint is not the caller's: nothing depends on the arrival of a wake-up."""
    one, other = connect(), connect()

    def subscribe(*_):
        raise ConnectionRefusedError("no connection is left")

    monkeypatch.setattr(type(one._client.engine), "subscribe", subscribe)
    lease, got = one.lock("x").acquire(), []
    waiter = threading.Thread(target=lambda: got.append(other.lock("x").acquire(timeout=20)))
    waiter.start()
    eventually(lambda: len(one.show("x").waiters) == 1)
    lease.release()
    waiter.join(10)

    assert got[0].fence > lease.fence
    got[0].release()


def test_a_connection_that_broke_while_idle_is_replaced_without_an_error(connect, hub):
    """Nothing was committed on it, so the command is sent on a new one."""
    client = connect()
    client.lock("x").acquire().release()
    hub.cut()

    client.lock("x").acquire(timeout=0).release()


def test_a_connection_that_breaks_before_the_commit_changes_nothing(connect, hub):
    """The error says that the server cannot be reached; the core may try again."""
    client = connect()
    transport = client._client.engine.keeper()
    hub.break_at = "load"

    with pytest.raises(Unavailable) as caught:
        run(transport.apply(Show("x")))

    assert (type(caught.value), caught.value.reason) == (Unavailable, "unreachable")
    assert hub.stored == {}


@pytest.mark.parametrize("moment", ["commit", "committed"])
def test_a_lost_reply_to_a_commit_is_resolved_by_sending_the_command_again(connect, hub, moment):
    """Whether the commit happened or not, there is one grant under one fence."""
    client = connect()
    client.lock("warm").acquire().release()
    hub.break_at = moment

    with client.lock("x", timeout=5) as lease:
        assert client.show("x").fence == lease.fence
        assert connect().lock("x").try_acquire() is None
    assert client.show("x").holder is None


def test_a_server_that_is_gone_is_reported_within_the_timeout(connect, hub):
    """And nothing hangs."""
    client = connect()
    client.lock("x").acquire().release()
    hub.close()
    began = time.monotonic()

    with pytest.raises(Unavailable) as caught:
        client.lock("x").acquire(timeout=0.5)

    assert caught.value.reason == "unreachable"
    assert time.monotonic() - began < 5


def test_a_restart_that_forgot_everything_is_counted_and_reported(connect, hub):
    """The holder loses its lease; the client knows since when answers come from the new run."""
    events = []
    client = connect(observer=events.append)
    lease = client.lock("x", ttl=2).acquire()
    engine = client._client.engine
    assert (engine.restarts, engine.restarted_ns) == (0, 0)

    hub.restart()
    eventually(lambda: lease.lost, 10)

    assert engine.restarts == 1
    assert engine.restarted_ns > 0
    assert "engine_restarted" in [event.kind for event in events]


def test_tasks_wait_for_the_server_in_the_loop_and_not_on_a_worker_thread(hub):
    """A transaction that waits for a lock on the server delays no other task."""

    async def main():
        async with await aio.connect(hub.url) as client:
            await (await client.lock("warm").acquire()).release()
            with hub.lock:  # every transaction with a name waits now
                blocked = [asyncio.ensure_future(client.show(name)) for name in "abc"]
                ticks = 0
                for _ in range(20):
                    await asyncio.sleep(0.01)
                    ticks += 1
                assert not any(each.done() for each in blocked)
            await asyncio.gather(*blocked)
            names = [thread.name for thread in threading.enumerate()]
            assert (ticks, [name for name in names if name.startswith("holdfast-store")]) == (20, [])

    asyncio.run(main())


def test_a_cancelled_task_leaves_no_lease_and_no_open_transaction(hub):
    """Its connection is closed, so that the server rolls back; the core undoes the grant if there was one."""

    async def main():
        async with await aio.connect(hub.url) as client:
            await (await client.lock("x").acquire()).release()
            hub.lock.acquire()
            task = asyncio.ensure_future(client.lock("x").acquire())
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            hub.lock.release()
            lease = await client.lock("x").acquire(timeout=5)
            await lease.release()

    asyncio.run(main())


def test_a_batch_is_one_transaction(connect, hub):
    """The keeper renews many leases at once."""
    transport = connect()._client.engine.keeper()
    before = hub.begun

    answers = run(transport.apply_all([Acquire(f"n{at}", f"t{at}", "{}", 5000, wait=False) for at in range(20)]))

    assert [type(answer) for answer in answers] == [Granted] * 20
    assert hub.begun == before + 1
    run(transport.close())


def test_a_record_is_the_same_after_packing():
    """The server stores text; the rules get the record that they returned."""
    record = Record(
        7,
        HolderRecord("token", "client", "{}", 7, 1000, 5, 10, offered=True),
        Waiters.of([Waiter("waiting", "other", "{}", 1000, 6)]),
        MemoryTombstones.of([Tombstone("ended", 99, "undone", "because")]),
        "last",
        8,
    )

    assert unpacked(packed(record)) == record
    assert unpacked(packed(Record())) == Record()
