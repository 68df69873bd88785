"""Pools in a SQLite file: what a dead process, another boot and damage mean for them."""

import sqlite3
import time

import pytest

import holdfast
from holdfast import Unavailable
from holdfast.engines.sqlite import location
from holdfast.testing import eventually, ready, send_line

LATE_S = 3.0


def hold(url, ttl):
    """In a child process: borrow an item, report its fence, and go on for ever."""
    with holdfast.connect(url) as hf, hf.pool("channels", ttl=ttl, on_death=0).borrow() as item:
        ready()
        send_line(str(item.fence))
        item.lost.wait(120)


def test_a_killed_borrowers_item_waits_for_its_ttl_although_its_death_is_known_at_once(connect, url, holdfast_workers):
    """A lock is taken over within milliseconds here; how the use of an item ended is not known, so it is not."""
    pool = connect().pool("channels", on_death=0)
    pool.set_items(["only"])
    killed = holdfast_workers.start(f"{__file__}:hold", url=url, ttl=1.5).wait_ready()
    fence = int(killed.read_line())
    left = pool.stats().items[0].remaining
    killed.kill()
    began = time.monotonic()
    with pool.borrow(timeout=30) as item:
        assert left - 0.5 <= time.monotonic() - began <= 1.5 + LATE_S
        assert item.fence > fence


def test_waiters_of_a_killed_process_are_passed_over_at_once(connect, url, holdfast_workers):
    """Its place in the waiting line ends with it."""
    pool = connect().pool("channels", ttl=20, on_death=0)
    pool.set_items(["only"])
    item = pool.borrow()
    killed = holdfast_workers.start(f"{__file__}:hold", url=url, ttl=20)
    eventually(lambda: pool.stats().waiting == 1, 20)
    killed.kill()
    item.release()
    pool.borrow(timeout=5).release()
    assert pool.stats()[1:6] == (1, 0, 0, 1, 0)


def test_another_boot_keeps_the_items_and_cools_those_that_were_lent(connect, monkeypatch):
    """Its processes are gone and its times mean nothing; what they did with their items is uncertain."""
    client = connect()
    pool = client.pool("channels", ttl=30, on_death=20)
    pool.set_items(["a", "b", "c"])
    lent, cooled = pool.borrow(), pool.borrow()
    cooled.cool(10)
    fence = lent.fence
    client.close(timeout=0)

    monkeypatch.setattr(location, "boot_id", lambda: "another boot")
    again = connect().pool("channels")
    seen = {item.name: item for item in again.stats().items}
    assert (seen[lent.name].state, 15 < seen[lent.name].remaining <= 20) == ("cooling", True)
    assert (seen[cooled.name].state, 5 < seen[cooled.name].remaining <= 10) == ("cooling", True)
    assert again.stats()[1:6] == (3, 0, 2, 1, 0)
    with again.borrow(timeout=0) as item:
        assert item.fence > fence


def test_a_damaged_pool_affects_no_other_name(connect, path):
    """The pool is reported as damaged; locks and other pools of the same file go on."""
    client = connect()
    pool, other = client.pool("channels"), client.pool("other")
    pool.set_items(["a"])
    other.set_items(["b"])
    with sqlite3.connect(path) as link:
        link.execute("UPDATE pool_item SET back_us = 'never', state = 'lent' WHERE name = 'a'")
    link.close()
    with pytest.raises(Unavailable) as caught:
        pool.borrow(timeout=0)
    assert caught.value.reason == "corrupt"
    with other.borrow(timeout=0), client.lock("x", timeout=0):
        pass
