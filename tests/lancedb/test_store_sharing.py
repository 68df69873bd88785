"""Several registrations of one process share a store; directories have one domain, through every path."""

import os
import signal
import threading

import pytest
from store_kit import SCHEMA, row

import holdfast
from holdfast import Closed, DomainMismatch, InvalidConfig
from holdfast.contrib import lancedb
from holdfast.contrib.lancedb import shared_table as shared_tables
from holdfast.testing.servers import Server, available


@pytest.mark.acceptance("A0-22")
def test_the_first_to_stop_closes_nothing_the_last_does_and_a_later_one_begins_anew(domain, opened, locking):
    """They share one line and one client, however many there are; stopping twice counts once."""
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


def test_nothing_is_left_of_a_store_that_was_closed(memory, tmp_path):
    """No thread of ours, no connection."""
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
    """What one registration relies on must hold for all."""
    opened(locking("embedded"))

    with pytest.raises(InvalidConfig, match="other settings"):
        opened(locking("embedded", ttl=7))


@pytest.mark.acceptance("A0-29")
def test_a_store_that_is_guarded_elsewhere_is_refused_before_any_write(domain, opened, locking):
    """Two locks on one thing are none; and no lock at all is refused too."""
    opened(locking(domain)).close()

    for other in {"embedded", "file", "redis", "off"} - {domain}:
        with pytest.raises(DomainMismatch):
            opened(locking(other))

    assert opened(locking(domain)).count() == 0


def test_without_a_lock_it_works_and_guards_nothing(opened, locking):
    """The mode that says so: writers of one process still share commits, and no marker is left."""
    store = opened("off")
    assert store.add(row(1)).fence is None
    store.update("r1", {"n": 2})

    assert store.get("r1")["n"] == 2
    assert {path.name for path in store.directory.iterdir()} == {"memories.lance"}


@pytest.mark.acceptance("A0-30")
def test_two_paths_to_one_store_mean_one_lease(domain, opened, locking, memory, tmp_path):
    """The name of the lease lies in the directory, and one process has one line for it."""
    (tmp_path / "link").symlink_to(memory)
    one, two = opened(locking(domain)), None
    if domain == "redis":
        two = opened(locking(domain), directory=tmp_path / "link")
        assert two._shared is one._shared
        return
    one.add(row(1))
    name = one._shared.writer_lock.name
    one.close()
    two = opened(locking(domain), directory=tmp_path / "link")

    assert two._shared.writer_lock.name == name
    assert two.count() == 1


def test_two_tables_of_one_directory_do_not_wait_for_each_other(opened):
    """Each has a lease of its own."""
    one, other = opened(), opened(table="dreams")
    with holdfast.connect(str(one._shared.settings.url)) as hf, hf.lock(one._shared.writer_lock.name):
        other.add(row(1))

    assert other.count() == 1
    assert one.count() == 0


def test_a_child_after_fork_is_told_that_the_store_is_its_parents(opened, locking):
    """The thread that writes did not come along. Whatever lock was held at that moment, nothing hangs, the child can
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
