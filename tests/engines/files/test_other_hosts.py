"""Other hosts: another boot, another clock, no wake-ups. Clients of this process pretend to be on them.

A real network filesystem adds old listings, old attributes and lost replies, which are not shown here.
"""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest

from holdfast.commands import Acquire, Busy, Granted, Renew, Renewed
from holdfast.core.step import run
from holdfast.engines.files.clocks import Clocks, Timestamp
from holdfast.testing import eventually


@pytest.fixture
def on_host(connect):
    """Return a client on another host: another boot, on a filesystem that is shared over a network."""

    def on_host(boot, **options):
        client = connect(**options)
        store = client._client.engine.store
        store._clocks = Clocks(boot)
        store.root.network = True
        return client

    return on_host


def send(client, command):
    return run(client._client.transport.apply(command))


def test_a_timestamp_of_another_boot_counts_from_when_it_was_first_seen():
    """It is never read as a time: neither a clock far ahead nor one far behind changes anything."""
    clocks = Clocks("here")
    now_us = clocks.now().at_us
    for at_us in (0, now_us, now_us * 1000):
        timestamp = Timestamp("there", at_us, 0)
        first = clocks.here_us(timestamp)
        time.sleep(0.01)

        assert now_us <= first <= clocks.now().at_us
        assert clocks.here_us(timestamp) == first
    assert clocks.here_us(Timestamp("here", 5, 0)) == 5


@pytest.mark.acceptance("A2-16")
def test_a_holder_of_another_host_is_replaced_after_its_ttl_on_the_waiters_clock(on_host):
    """The waiter counts from when it first saw the last renewal; only then is the silence proven to it."""
    holder, waiter = on_host("one"), on_host("two")
    granted = send(holder, Acquire("x", "silent", "", 500, wait=False))
    time.sleep(0.6)  # the waiter has not looked yet, so for it nothing has expired
    assert isinstance(send(waiter, Acquire("x", "w", "", 500, wait=False)), Busy)
    began = time.monotonic()

    lease = waiter.lock("x", timeout=10).acquire()

    assert 0.3 < time.monotonic() - began < 3
    assert lease.fence > granted.fence
    lease.release()


@pytest.mark.acceptance("A2-16")
def test_a_holder_that_renews_is_not_replaced_by_another_host(on_host):
    """Each renewal is a version that the waiter has not seen before, and counts from then."""
    holder, waiter = on_host("one"), on_host("two")
    assert isinstance(send(holder, Acquire("x", "alive", "", 400, wait=False)), Granted)
    for _ in range(10):
        assert isinstance(send(waiter, Acquire("x", "w", "", 400, wait=False)), Busy)
        time.sleep(0.1)
        assert send(holder, Renew("x", "alive", 400)) == Renewed()

    assert isinstance(send(waiter, Acquire("x", "w", "", 400, wait=False)), Busy)


@pytest.mark.acceptance("A2-16")
@pytest.mark.parametrize("ahead_s", [-3600, 360, 3600])
def test_a_wrong_calendar_steals_no_lease_and_delays_none(child, connect, ahead_s):
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


def test_waiters_on_a_network_poll(on_host):
    """Wake-ups do not cross hosts; so waiters poll, at most twenty times a second, and less and less often."""
    holder, waiter = on_host("one"), on_host("two")
    lease = holder.lock("x").acquire()
    store = waiter._client.engine.store
    store._pipe = lambda client: f"/nowhere/{client}"
    holder._client.engine.store._pipe = store._pipe
    pauses = [store.next_poll_ns("t", 2**62) - store.clock.now_ns() for _ in range(12)]
    assert not waiter.promise().fifo

    lease.release()
    began = time.monotonic()
    waiter.lock("x", timeout=10).acquire().release()

    assert time.monotonic() - began < 5
    assert 30e6 < pauses[0] < 70e6
    assert 300e6 < pauses[-1] < 700e6


def test_a_release_is_seen_by_a_waiter_of_another_host(on_host):
    """It waits in line, polls, and confirms the offer."""
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


def test_a_dead_holder_of_another_host_does_not_count_as_dead_here(child, on_host):
    """Only the kernel that ran it knows that it died; here its ttl decides."""
    holder = child()
    holder.ask("acquire", ttl=1.5)
    holder.worker.kill()
    other = on_host("elsewhere")

    assert other.lock("x").try_acquire() is None
    other.lock("x", timeout=20).acquire().release()


def test_a_folder_that_a_host_remembers_as_absent_is_found_after_a_lost_race(on_host, monkeypatch):
    """NFS version 3 may remember that until a client tries to create that very folder."""
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
