"""Names that are no longer used cost nothing for long."""

from __future__ import annotations

import statistics
import time

import pytest

from holdfast.clock import SYSTEM
from holdfast.engines.sqlite import lease_rows
from holdfast.rules.lease_record import HolderRecord, Record

MANY = 10_000


@pytest.fixture
def client(connect):
    return connect(fence_memory=1)


def transact(client, work):
    return client._client.engine.store.database.transact(work)


def count(client):
    return transact(client, lambda cursor: cursor.execute("SELECT count(*) FROM lease").fetchone()[0])


def add_expired(client, many):
    """Store leases of a dead process that expired long ago and were not used since."""
    past_us = SYSTEM.now_ns() // 1000 - 100_000_000

    def add(cursor):
        for number in range(many):
            holder = HolderRecord(f"token {number}", "999", "{}", 7, 30_000, past_us, past_us, offered=False)
            lease_rows.store(
                cursor,
                f"expired {number}",
                lease_rows.Row(Record(), ""),
                Record(7, holder, touched_us=past_us),
                1_000_000,
            )

    transact(client, add)


def typical_pair_s(client):
    seconds = []
    for number in range(200):
        began = time.perf_counter()
        client.lock(f"name {number % 50}").acquire(timeout=0).release()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def test_ten_thousand_expired_names_do_not_slow_an_acquire(client):
    """A lock on one name must not pay for the others, and no single command for the clean-up."""
    before = min(typical_pair_s(client) for _ in range(3))
    add_expired(client, MANY)

    after = min(typical_pair_s(client) for _ in range(3))

    assert after < 2 * before + 0.0005


def test_an_expired_name_is_free_though_its_holder_was_never_seen(client):
    """An expired lease is free, whichever client held it."""
    add_expired(client, 1)

    lease = client.lock("expired 0").acquire(timeout=0)

    assert lease.fence > 7
    lease.release()


def test_names_used_once_do_not_pile_up(client):
    """Many programs use a new name for every piece of work: the clean-up must keep up with them."""
    add_expired(client, 1000)

    for number in range(1000):
        client.lock(f"once {number}").acquire(timeout=0).release()

    assert count(client) < 1300


def test_processes_that_do_little_clean_up_too(client, connect):
    """A program that takes one lease and ends must not leave the clean-up to a client that never comes."""
    add_expired(client, 200)

    for _ in range(10):
        with connect(fence_memory=1) as short:
            short.lock("x").acquire(timeout=0).release()

    assert count(client) < 100


def test_a_name_is_remembered_for_the_configured_time(client, monkeypatch):
    """Until then its last fence is known, whatever the calendar says."""
    monkeypatch.setattr("holdfast.clock.SystemClock.wall_us", lambda _: 1)

    fences = []
    for _ in range(200):
        lease = client.lock("x").acquire(timeout=0)
        lease.release()
        fences.append(lease.fence)

    assert fences == list(range(1, 201))
