"""Pools on real servers, through several processes: one script per borrow, one slot per pool, real signals."""

import os
import threading
import time
from collections import Counter

import pytest

import holdfast
from holdfast import LeaseLost, NotAcquired, Unavailable
from holdfast.cli.doctor import _examine
from holdfast.testing import WorkerProcesses, eventually

BORROWERS = f"{os.path.dirname(__file__)}/pool_borrowers.py"
LATE_S = 3.0
LENDING_S = float(os.environ.get("HOLDFAST_LENDING_S", "5"))  # `make trials` lends for a minute


@pytest.fixture
def pool(one_server):
    """A pool that is emptied at the end of the test."""
    with holdfast.connect(one_server.url) as client:
        pool = client.pool("channels", on_death=0)
        yield pool
        client.pool("channels").set_items([], leave=True)


def calls(server):
    """Return how often each command was called since the statistics were reset."""
    lines = server.command("INFO", "commandstats").decode().splitlines()
    found = [line.partition(":") for line in lines if line.startswith("cmdstat_")]
    return {name.removeprefix("cmdstat_"): int(rest.split(",")[0].removeprefix("calls=")) for name, _, rest in found}


@pytest.mark.acceptance("A3-2")
def test_of_a_hundred_borrowers_in_several_processes_twenty_succeed(pool, one_server):
    """No item is returned: twenty different items are lent, eighty borrowers get `all busy`."""
    pool.set_items([f"channel {number}" for number in range(20)])
    with WorkerProcesses() as workers:
        crowd = [workers.start(f"{BORROWERS}:keep", url=one_server.url, count=25).wait_ready() for _ in range(4)]
        for worker in crowd:
            worker.send_line("go")
        told = [worker.read_line(30) for worker in crowd for _ in range(25)]
        stored = {(item.name, str(item.fence)) for item in pool.stats().items if item.state == "lent"}
        for worker in crowd:
            worker.send_line("end")
            worker.wait()
    lent = [tuple(line.split("\t")[1:]) for line in told if line.startswith("lent")]
    assert len(lent) == len(set(lent)) == 20
    assert set(lent) == stored
    assert Counter(line for line in told if not line.startswith("lent")) == {"all busy": 80}


@pytest.mark.acceptance("A3-3", "G-8")
def test_no_item_has_two_borrowers_by_an_independent_count(pool, one_server):
    """Each borrower counts itself in and out of its item in separate keys: no count ever reaches two."""
    pool.set_items([f"channel {number}" for number in range(5)])
    with WorkerProcesses() as workers:
        crowd = [
            workers.start(f"{BORROWERS}:work", url=one_server.url, seed=seed, seconds=LENDING_S) for seed in range(4)
        ]
        reports = [worker.read_line(LENDING_S + 60) for worker in crowd]
        for worker in crowd:
            worker.wait()
    one_server.command("DEL", *one_server.command("KEYS", "inside:*"), "inside:")
    uses, twice, least = zip(*(map(int, report.split()) for report in reports), strict=True)
    assert sum(twice) == 0
    assert sum(uses) > 100
    assert min(least) > 0, "somebody starved"
    assert {item.used > 0 for item in pool.stats().items} == {True}


@pytest.mark.acceptance("A3-8", "A3-9", "A3-10", "A3-23", "C-12", "C-19", "C-20")
def test_a_borrow_is_one_script_and_scans_nothing(pool, one_server):
    """No scan, no list of locks, no order elsewhere: no command can come between, fail apart, or grow with the pool.

    The commands of a borrow and a return are the same for ten items and for two thousand.
    """

    def cost(items):
        pool.set_items(f"channel {number}" for number in range(items))
        for _ in range(3):
            pool.borrow().release()
        one_server.command("CONFIG", "RESETSTAT")
        for _ in range(20):
            pool.borrow().release()
        counted = calls(one_server)
        return {name: count for name, count in counted.items() if name not in ("info", "config|resetstat", "config")}

    small, large = cost(10), cost(2000)
    assert small == large
    assert small["evalsha"] == 40
    assert not {"scan", "keys", "hgetall", "hkeys", "smembers", "eval"} & small.keys()


@pytest.mark.acceptance("A3-15")
def test_a_frozen_borrower_is_replaced_and_fenced_and_learns_its_loss(pool, one_server):
    """After a SIGSTOP beyond the ttl the item is lent again under a larger fence; thawed, the borrower learns it."""
    pool.set_items(["only"])
    with WorkerProcesses() as workers:
        frozen = workers.start(f"{BORROWERS}:hold", url=one_server.url, ttl=1.0).wait_ready()
        fence = int(frozen.read_line())
        frozen.freeze()
        with pool.borrow(timeout=30) as item:
            assert item.fence > fence
            frozen.thaw()
            assert frozen.read_line(30) == "lost expired"
            frozen.wait()
            item.check()
        assert pool.stats().free == 1


@pytest.mark.acceptance("A3-17")
def test_a_killed_borrowers_item_is_lent_after_its_ttl_and_not_before(pool, one_server):
    """After a real SIGKILL no client releases the item, and no client gets it early."""
    pool.set_items(["only"])
    with WorkerProcesses() as workers:
        doomed = workers.start(f"{BORROWERS}:hold", url=one_server.url, ttl=1.5).wait_ready()
        doomed.read_line()
        eventually(lambda: pool.stats().lent == 1)
        left = pool.stats().items[0].remaining
        doomed.kill()
        began = time.monotonic()
        with pool.borrow(timeout=30):
            waited = time.monotonic() - began
    assert left - 0.5 <= waited <= 1.5 + LATE_S


@pytest.mark.acceptance("A3-11")
def test_a_server_that_is_gone_is_not_an_empty_pool(new_server):
    """An error of the server is reported as such."""
    server = new_server()
    with holdfast.connect(server.url) as client:
        pool = client.pool("channels", ttl=1)  # an undo is owed for no longer than that
        pool.set_items(["a"])
        pool.borrow().release()
        pool.set_items([])
        server.close()
        with pytest.raises(Unavailable):
            pool.borrow(timeout=0)


@pytest.mark.acceptance("A3-21")
def test_stats_have_figures_even_if_the_items_cannot_be_listed(one_server):
    """Another program has overwritten the items: size and figures are there, and `trouble` gives the cause."""
    with holdfast.connect(one_server.url) as client:
        pool = client.pool("spoilt")
        pool.set_items(["a", "b", "c"])
        one_server.command("SET", "hf2:{spoilt}:pool:items", "?")
        stats = pool.stats()
        assert (stats.size, stats.free, stats.items) == (3, 3, ())
        assert "cannot be listed" in stats.trouble
    one_server.command("FLUSHALL")


@pytest.mark.acceptance("A3-24", "C-13")
def test_in_a_cluster_all_keys_of_a_pool_share_a_slot(cluster):
    """One server answers every command of a pool; it would refuse keys of other slots."""
    with holdfast.connect(cluster.url) as client:
        pool = client.pool("channels", on_death=0)
        pool.set_items(["a", "b", "c"])
        items = [pool.borrow(tag="acme", share=0.4), pool.borrow()]
        with pytest.raises(NotAcquired):
            pool.borrow(timeout=0.2, tag="acme", share=0.4)
        items[0].extend(20)
        items[0].cool(0.1)
        items[1].release()
        keys = [key for server in cluster.servers for key in server.command("KEYS", "hf2:*{channels}*")]
        slots = {cluster.servers[0].command("CLUSTER", "KEYSLOT", key) for key in keys}
        assert len(set(keys)) > 3
        assert len(slots) == 1
        eventually(lambda: pool.stats().free == 3)
        pool.set_items([])


def test_at_maxmemory_items_can_be_renewed_and_returned(new_server):
    """Otherwise a full server would never free memory."""
    full = new_server()
    with holdfast.connect(full.url) as client:
        pool = client.pool("channels", on_death=0)
        pool.set_items(["a", "b"])
        item, other = pool.borrow(), pool.borrow()
        full.command("CONFIG", "SET", "maxmemory", 1)
        item.extend(40)
        item.release()
        other.cool(0.01)
        with pytest.raises(Unavailable):
            pool.add(["c"])
        full.command("CONFIG", "SET", "maxmemory", 0)
        eventually(lambda: pool.stats().free == 2)
        pool.set_items([])


def test_at_maxmemory_a_waiter_for_a_permit_keeps_its_place_and_its_turn(new_server):
    """A repeated acquire and a heartbeat do not change the order, so a full server must not refuse them."""
    full = new_server()
    events = []
    with holdfast.connect(full.url, observer=events.append) as client:
        semaphore = client.semaphore("gpu", permits=1, ttl=20)
        first, got = semaphore.acquire(), []
        waiter = threading.Thread(target=lambda: got.append(semaphore.acquire(timeout=30)))
        waiter.start()
        eventually(lambda: semaphore.stats().waiting == 1)
        full.command("CONFIG", "SET", "maxmemory", 1)
        time.sleep(4)  # it has asked again, and said twice that it lives
        assert waiter.is_alive()
        first.release()
        waiter.join()
        full.command("CONFIG", "SET", "maxmemory", 0)
        assert got[0].fence > first.fence
        assert [event for event in events if event.kind == "unavailable"] == []
        got[0].release()


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_waiters_whose_keys_were_lost_are_served(pool, one_server, share):
    """A server may evict a part of a pool. Its waiters send their commands again and get new places."""
    pool.set_items(["only"])
    item = pool.borrow()
    tag = None if share == 1 else "t"
    got = []
    waiters = [
        threading.Thread(target=lambda: got.append(pool.borrow(timeout=20, tag=tag, share=share).release()))
        for _ in range(2)
    ]
    for waiter in waiters:
        waiter.start()
    eventually(lambda: pool.stats().waiting == 2)
    (waiters_key,) = [key for key in one_server.command("KEYS", "*") if key.endswith(b":pool:waiters")]
    one_server.command("DEL", waiters_key)

    assert pool.stats().trouble == ""
    item.release()
    for waiter in waiters:
        waiter.join()
    assert got == [None, None]
    assert pool.stats().waiting == 0


JUNK = [b"junk", b"", b"\xc1", b"\x93\x01\x02\x03"]
ITEMS_KEY = "hf2:{channels}:pool:items"


@pytest.mark.parametrize("junk", JUNK)
def test_an_item_that_cannot_be_read_is_not_lent_and_blocks_no_other(pool, one_server, junk):
    """Another program overwrote it. Statistics and doctor name its field, and a user can replace it."""
    pool.set_items(["a", "b", "c"])
    one_server.command("HSET", ITEMS_KEY, "b", junk)

    lent = [pool.borrow(timeout=0) for _ in range(2)]
    assert sorted(item.name for item in lent) == ["a", "c"]
    with pytest.raises(NotAcquired):
        pool.borrow(timeout=0)
    stats = pool.stats(limit=0)
    assert "cannot be read, and are not lent: b (fields of the key hf2:{channels}:pool:items)" in stats.trouble
    assert (stats.size, stats.lent, stats.cooling, stats.free) == (3, 2, 0, 0)
    found = [finding.what for finding in _examine(one_server.url).findings if "channels" in finding.what]
    assert len(found) == 1
    assert stats.trouble in found[0]
    pool.remove(["b"])
    pool.add(["b"])
    lent.append(pool.borrow(timeout=0))
    assert lent[-1].name == "b"
    for item in lent:
        item.release()
    assert pool.stats().trouble == ""
    assert pool.stats().free == 3


def test_an_expired_item_that_cannot_be_read_stays_away_and_the_others_come_back(pool, one_server):
    """The script that brings expired items back meets it after it has written others: it completes its step."""
    pool.set_items(["a", "b", "c"])
    with holdfast.connect(one_server.url) as client:
        dead = [client.pool("channels", ttl=1, on_death=0).borrow(timeout=0) for _ in range(2)]
        client.close(timeout=0)
    healthy = pool.borrow(timeout=0)
    one_server.command("HSET", ITEMS_KEY, dead[1].name, b"junk")

    again = pool.borrow(timeout=10)
    assert again.name == dead[0].name
    with pytest.raises(NotAcquired):
        pool.borrow(timeout=0)
    healthy.release()
    again.release()
    assert pool.stats().free == 2
    pool.remove([dead[1].name])
    stats = pool.stats()
    assert (stats.size, stats.lent, stats.trouble) == (2, 0, "")


def test_the_borrower_of_an_item_that_cannot_be_read_hears_which_field_it_is(pool, one_server):
    """The error claims no more than is known, and names the one field."""
    pool.set_items(["a", "b"])
    item = pool.borrow(timeout=0)
    one_server.command("HSET", ITEMS_KEY, item.name, b"junk")

    with pytest.raises(Unavailable) as caught:
        item.extend(30)
    assert caught.value.reason == "corrupt"
    assert f"another program wrote to the field {item.name} of the key {ITEMS_KEY}" in caught.value.detail
    assert "nothing was changed" not in caught.value.detail
    with pytest.raises(Unavailable) as caught:
        pool.cool(item.name, 1)
    assert f"the field {item.name} of the key" in caught.value.detail
    with pool.borrow(timeout=0) as other:
        assert other.name != item.name
    pool.remove([item.name])
    with pytest.raises(LeaseLost):
        item.release()
