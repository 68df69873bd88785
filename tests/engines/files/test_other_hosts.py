"""Other hosts: another boot, another clock, nobody who could ring. Played here by clients that take themselves for one.

What a real network filesystem adds is not shown here: old listings, old attributes, lost replies.
"""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest

from holdfast.commands import Acquire, Busy, Granted, Renew, Renewed
from holdfast.core.step import run
from holdfast.engines.files.clocks import Date, Dates
from holdfast.testing import eventually


@pytest.fixture
def on_host(connect):
    """A client that lives on another host: another boot, on a filesystem that is shared over a network."""

    def on_host(boot, **options):
        client = connect(**options)
        store = client._client.engine.store
        store._dates = Dates(boot)
        store.ground.network = True
        return client

    return on_host


def say(client, command):
    return run(client._client.transport.apply(command))


def test_a_date_of_another_boot_counts_from_when_it_was_first_seen():
    """It is never read as a time: neither a clock far ahead nor one far behind changes anything."""
    dates = Dates("here")
    now_us = dates.now().at_us
    for at_us in (0, now_us, now_us * 1000):
        date = Date("there", at_us, 0)
        first = dates.here_us(date)
        time.sleep(0.01)

        assert now_us <= first <= dates.now().at_us
        assert dates.here_us(date) == first
    assert dates.here_us(Date("here", 5, 0)) == 5


@pytest.mark.acceptance("A2-16")
def test_a_holder_of_another_host_is_replaced_after_its_ttl_on_the_waiters_clock(on_host):
    """The waiter counts from when it first saw the last sign of life; only then is the silence proven to it."""
    holder, waiter = on_host("one"), on_host("two")
    granted = say(holder, Acquire("x", "silent", "", 500, wait=False))
    time.sleep(0.6)  # the waiter has not looked yet, so to it nothing has lapsed
    assert isinstance(say(waiter, Acquire("x", "w", "", 500, wait=False)), Busy)
    began = time.monotonic()

    lease = waiter.lock("x", timeout=10).acquire()

    assert 0.3 < time.monotonic() - began < 3
    assert lease.fence > granted.fence
    lease.release()


@pytest.mark.acceptance("A2-16")
def test_a_holder_that_renews_is_not_replaced_by_another_host(on_host):
    """Each renewal is a sign that the waiter has not seen before, and counts anew."""
    holder, waiter = on_host("one"), on_host("two")
    assert isinstance(say(holder, Acquire("x", "alive", "", 400, wait=False)), Granted)
    for _ in range(10):
        assert isinstance(say(waiter, Acquire("x", "w", "", 400, wait=False)), Busy)
        time.sleep(0.1)
        assert say(holder, Renew("x", "alive", 400)) == Renewed()

    assert isinstance(say(waiter, Acquire("x", "w", "", 400, wait=False)), Busy)


@pytest.mark.acceptance("A2-16")
@pytest.mark.parametrize("ahead_s", [-3600, 360, 3600])
def test_a_calendar_that_is_wrong_steals_nothing_and_delays_nothing(child, connect, ahead_s):
    """Six minutes ahead stole a live lock from others; here no calendar decides anything."""
    client, wrong = connect(), child(ahead_s=ahead_s)
    with client.lock("x", ttl=5) as lease:
        refused = wrong.ask("acquire", timeout=0.3)
        lease.check()
    entered = wrong.ask("acquire", timeout=5)

    assert refused["error"] == "NotAcquired"
    assert entered["fence"] > lease.fence
    wrong.ask("release")
    with client.lock("x", timeout=5) as later:
        assert later.fence > entered["fence"]


def test_waiters_on_a_network_look_by_themselves(on_host):
    """Nobody of another host could ring; so they ask again, at most twenty times a second, and less and less."""
    holder, waiter = on_host("one"), on_host("two")
    lease = holder.lock("x").acquire()
    store = waiter._client.engine.store
    store._pipe = lambda client: f"/nowhere/{client}"
    holder._client.engine.store._pipe = store._pipe
    naps = [store.look_again_ns("t", 2**62) - store.clock.now_ns() for _ in range(12)]
    assert not waiter.promise().fifo

    lease.release()
    began = time.monotonic()
    waiter.lock("x", timeout=10).acquire().release()

    assert time.monotonic() - began < 5
    assert 30e6 < naps[0] < 70e6
    assert 300e6 < naps[-1] < 700e6


def test_a_release_is_seen_by_a_waiter_of_another_host(on_host):
    """It waits in the queue, looks now and then, and takes what it was offered."""
    holder, waiter = on_host("one"), on_host("two")
    lease = holder.lock("x").acquire()
    got = []
    waiting = threading.Thread(target=lambda: got.append(waiter.lock("x", timeout=20).acquire()), daemon=True)
    waiting.start()
    eventually(lambda: len(holder.show("x").waiters) == 1)

    lease.release()

    waiting.join(10)
    assert got[0].fence > lease.fence
    got[0].release()


def test_whoever_is_dead_on_another_host_is_not_taken_for_dead_here(child, on_host):
    """Only the kernel that ran it knows; here its ttl decides."""
    holder = child()
    holder.ask("acquire", ttl=1.5)
    holder.worker.kill()
    stranger = on_host("elsewhere")

    assert stranger.lock("x").try_acquire() is None
    stranger.lock("x", timeout=20).acquire().release()


def test_a_folder_that_a_host_remembers_as_absent_is_seen_by_who_has_met_it(on_host, monkeypatch):
    """So NFS version 3 may have it: it goes on until somebody tries to make that very folder."""
    one, two = on_host("one"), on_host("two")
    one.lock("x").acquire().release()
    two.show("warm")
    remembered, look, make = {"x"}, os.open, os.mkdir

    def open_(path, *args, **options):
        if path in remembered:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return look(path, *args, **options)

    def mkdir(path, *args, **options):
        remembered.discard(path)
        return make(path, *args, **options)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "mkdir", mkdir)

    with two.lock("x", timeout=0) as lease:
        assert one.show("x").fence == lease.fence
