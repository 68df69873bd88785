"""Several users of one process share a store, and a directory has one lock domain through every path."""

import os
import signal
import threading
import time

import pytest
from store_kit import SCHEMA, row

import holdfast
from holdfast import Closed, DomainMismatch, InvalidConfig, Unavailable
from holdfast.contrib import lancedb
from holdfast.contrib.lancedb import shared_table as shared_tables
from holdfast.testing.servers import Server, available


@pytest.mark.acceptance("A0-22")
def test_the_last_user_closes_the_store_and_a_later_one_opens_it_again(domain, opened, locking):
    """All users share one write queue and one client; a second stop counts once."""
    first, second = opened(locking(domain)), opened(locking(domain))
    assert second.status().users == 2
    shared = first._shared
    assert second._shared is shared

    first.close()
    first.close()
    second.add(row(1))
    with pytest.raises(Closed):
        first.add(row(2))
    second.close()

    assert not shared.write_queue._thread.is_alive()
    with pytest.raises(Closed):
        shared._client.lock("x").acquire()
    third = opened(locking(domain))
    third.add(row(3))
    assert third._shared is not shared
    assert third.count() == 2


def test_nothing_is_left_of_a_closed_store(memory, tmp_path):
    """No thread and no connection remains."""
    with Server(next(iter(available()))) as server:
        config = {"locking": {"mode": "redis", "url": server.url}}
        before = {thread.name for thread in threading.enumerate()}
        with lancedb.open_store(memory, "memories", config, schema=SCHEMA) as store:
            store.add(row(1))
        left = {thread.name for thread in threading.enumerate()} - before
        clients = server.command("CLIENT", "LIST").decode().strip().splitlines()

    assert not [name for name in left if name.startswith("holdfast")]
    assert len(clients) == 1, "the one that asks"


def test_one_process_cannot_guard_one_store_in_two_ways(opened, locking):
    """The lock of one user must hold for all."""
    opened(locking("embedded"))

    with pytest.raises(InvalidConfig, match="other settings"):
        opened(locking("embedded", ttl=7))


@pytest.mark.acceptance("A0-29")
def test_a_store_guarded_by_another_engine_is_refused_before_any_write(domain, opened, locking):
    """Two engines would not exclude each other; the mode without a lock is refused too."""
    opened(locking(domain)).close()

    for other in {"embedded", "file", "redis", "off"} - {domain}:
        with pytest.raises(DomainMismatch):
            opened(locking(other))

    assert opened(locking(domain)).count() == 0


def test_the_mode_without_a_lock_guards_nothing(opened, locking):
    """In this mode writers of one process still share commits, and no marker is left."""
    store = opened("off")
    assert store.add(row(1)).fence is None
    store.update("r1", {"n": 2})

    assert store.get("r1")["n"] == 2
    assert {path.name for path in store.directory.iterdir()} == {"memories.lance"}


@pytest.mark.finding("T10")
@pytest.mark.acceptance("A0-30")
def test_two_paths_to_one_store_mean_one_lease(domain, opened, locking, memory, tmp_path):
    """The directory contains the name of the lease, and one process has one write queue for it."""
    (tmp_path / "link").symlink_to(memory)
    one = opened(locking(domain))
    two = opened(locking(domain), directory=tmp_path / "link")
    two.add(row(1))
    name = one._shared.writer_lock.name

    assert two._shared is one._shared
    assert one.count() == 1
    one.close()
    two.close()
    three = opened(locking(domain), directory=tmp_path / "link")
    assert three._shared.writer_lock.name == name
    assert three.count() == 1


@pytest.mark.finding("T10")
def test_two_paths_with_other_settings_are_refused(opened, locking, memory, tmp_path):
    """Only the path in the default URL may differ."""
    (tmp_path / "link").symlink_to(memory)
    opened(locking("embedded"))

    for other in (locking("embedded", ttl=7), locking("embedded", url=f"sqlite://{tmp_path}/other.db")):
        with pytest.raises(InvalidConfig, match="other settings"):
            opened(other, directory=tmp_path / "link")


@pytest.mark.finding("T10")
def test_an_open_that_is_refused_while_its_server_is_away_leaves_no_mark(opened, locking, memory):
    """The mark would refuse the engine that is there."""
    with pytest.raises(Unavailable):
        opened(locking("redis", url="redis://127.0.0.1:1"))

    assert list(memory.iterdir()) == []
    opened(locking("file")).add(row(1))


@pytest.mark.finding("L10")
def test_a_write_does_not_wait_for_ever_for_a_server_that_went_away(memory):
    """By default it waits for five seconds; nothing was written."""
    with Server(next(iter(available()))) as server:
        config = {"locking": {"mode": "redis", "url": server.url}}
        with lancedb.open_store(memory, "memories", config, schema=SCHEMA) as store:
            store.add(row(1))
            server.kill()
            caught, began = [], time.monotonic()

            def write():
                try:
                    store.add(row(2))
                except Unavailable as error:
                    caught.append(error)

            writer = threading.Thread(target=write, daemon=True)
            writer.start()
            writer.join(30)
            took = time.monotonic() - began

            assert len(caught) == 1
            assert took < 10
            assert store.count() == 1
            server.start()
            store.add(row(3))
            assert store.count() == 2


def test_two_tables_of_one_directory_do_not_wait_for_each_other(opened):
    """Each table has its own lease."""
    one, other = opened(), opened(table="dreams")
    with holdfast.connect(str(one._shared.settings.url)) as hf, hf.lock(one._shared.writer_lock.name):
        other.add(row(1))

    assert other.count() == 1
    assert one.count() == 0


def test_a_forked_child_cannot_use_the_store_of_its_parent(opened, locking):
    """The child has no writer thread. Whatever lock was held at that moment, nothing hangs, the child can
    open a store of its own, and the parent goes on.
    """
    store = opened()
    held, go = threading.Event(), threading.Event()

    def hold():
        with shared_tables._guard, store._shared.write_queue._changed:
            held.set()
            go.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.alarm(20)
            with pytest.raises(Closed):
                store.add(row(1))
            store.close()
            shared_tables.leave(shared_tables.join(store.directory, "memories", store._shared.settings, None), 5)
            code = 0
        finally:
            os._exit(code)
    go.set()
    _, code = os.waitpid(pid, 0)
    holder.join()

    assert code == 0
    store.add(row(2))
    assert store.count() == 1
