"""A dropped lease and a keeper without work end."""

from __future__ import annotations

import gc
import threading
import time
import warnings

import pytest

import holdfast
from holdfast.testing import eventually


@pytest.fixture
def keepers():
    """Return the keepers that this test has made; those of other tests may still be ending."""
    before = set(threading.enumerate())
    return lambda: [thread for thread in set(threading.enumerate()) - before if thread.name == "holdfast-keeper"]


def test_a_dropped_lease_is_no_longer_renewed_and_is_reported(connect, prober):
    """A lease that no code can release must not be held for ever, and the program should learn of it."""
    events = []
    client = connect(observer=lambda event: events.append(event.kind))
    leases = [client.lock("x", ttl=0.6).acquire()]
    time.sleep(0.5)

    with pytest.warns(ResourceWarning, match="'x' was dropped without a release"):
        leases.clear()
    dropped = time.monotonic()
    before = events.count("renewed")
    prober.seconds_to_get("x", 3)

    assert time.monotonic() - dropped < 1.2
    assert "abandoned" in events
    assert before >= 1
    assert events.count("renewed") == before


def test_a_dropped_lease_does_not_end_before_its_ttl(connect):
    """Its work may still run somewhere: only the end of the renewals is certain."""
    client, other = connect(), connect()
    leases = [client.lock("x", ttl=1).acquire()]
    with pytest.warns(ResourceWarning):
        leases.clear()

    assert other.lock("x").try_acquire() is None


def test_a_released_lease_is_dropped_without_a_warning(connect):
    """Warnings are for mistakes."""
    client = connect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lease = client.lock("x").acquire()
        lease.release()
        del lease
        with client.lock("x") as lease:
            pass
        del lease
        client.lock("x").try_acquire().release()
        gc.collect()


def test_a_lost_lease_is_dropped_without_a_warning(connect):
    """The loss was reported already."""
    client, other = connect(), connect()
    lease = client.lock("x", ttl=0.3).acquire()
    other.break_lease("x", "the test says so")
    assert lease.lost.wait(timeout=2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del lease
        gc.collect()


def test_a_client_without_a_lease_has_no_thread(url):
    """Connecting, looking up and making locks cost no thread."""
    before = threading.active_count()
    with holdfast.connect(url) as client:
        client.lock("x")
        client.show("x")
        client.promise()

        assert threading.active_count() == before


def test_a_keeper_without_work_ends_and_a_new_lease_starts_another(url, keepers, monkeypatch):
    """A program that locked once should not have a thread for ever."""
    monkeypatch.setattr("holdfast.core.keeper.keeper._IDLE_MAX_NS", 100_000_000)
    monkeypatch.setattr("holdfast.core.keeper.keeper._POLL_NS", 20_000_000)
    renewed = threading.Event()
    with holdfast.connect(url, observer=lambda event: renewed.set() if event.kind == "renewed" else None) as client:
        client.lock("x").acquire().release()
        assert len(keepers()) == 1
        eventually(lambda: not keepers(), timeout=3)

        with client.lock("x", ttl=0.4):
            assert len(keepers()) == 1
            assert renewed.wait(2)


def test_a_lease_acquired_while_a_keeper_ends_is_kept(url, monkeypatch):
    """The thread has found nothing to do, and a lease is granted before it ends: a keeper must go on."""
    monkeypatch.setattr("holdfast.core.keeper.keeper._IDLE_MAX_NS", 0)
    renewed = threading.Event()
    with holdfast.connect(url, observer=lambda event: renewed.set() if event.kind == "renewed" else None) as client:
        keeper = client._client.keeper
        look, leases = keeper._next_ns, []

        def look_and_then_acquire(now_ns):
            seen = look(now_ns)
            if not leases:
                leases.append(None)
                taker = threading.Thread(target=lambda: leases.append(client.lock("y", ttl=0.4).acquire()))
                taker.start()
                taker.join(2)
            return seen

        monkeypatch.setattr(keeper, "_next_ns", look_and_then_acquire)
        client.lock("x").acquire().release()
        eventually(lambda: len(leases) == 2)

        assert renewed.wait(2)
        leases[1].release()


@pytest.mark.acceptance("G-10")
def test_a_closed_client_leaves_no_thread(url):
    """Shutdown leaks nothing."""
    before = set(threading.enumerate())
    client = holdfast.connect(url)
    lease = client.lock("x").acquire()
    waiter = threading.Thread(target=lambda: client.lock("x").acquire(timeout=5).release())
    waiter.start()
    eventually(lambda: len(client.show("x").waiters) == 1)
    lease.release()
    waiter.join()

    client.close()

    assert set(threading.enumerate()) <= before
