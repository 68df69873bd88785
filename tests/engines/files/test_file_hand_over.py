"""From a release to the next grant: everything that can wait, or be left out, comes after the wake-up."""

from __future__ import annotations

import pytest

from holdfast.engines.files import engine as store
from holdfast.engines.files.log import VersionLog
from holdfast.testing import eventually


@pytest.fixture
def held_before(connect, child):
    """A lease of this process, and children that wait for it in this order."""

    def held_before(waiters):
        client = connect()
        lease, line = client.lock("x", ttl=30).acquire(), [child() for _ in range(waiters)]
        for place, waiter in enumerate(line):
            waiter.order("acquire")
            eventually(lambda place=place: len(client.show("x").waiters) == place + 1)
        return lease, line

    return held_before


def test_a_release_looks_at_no_more_waiters_than_it_must(held_before, monkeypatch):
    """To see whether a client lives takes a few system calls, and the line may be long: the first one decides."""
    lease, (first, second, third) = held_before(3)
    second.worker.kill()
    looked = []
    look = store.look

    def counted(root, clocks, client):
        looked.append(client)
        return look(root, clocks, client)

    monkeypatch.setattr(store, "look", counted)
    lease.client.keeper.stop()  # its heartbeats look too
    lease.release()
    monkeypatch.undo()

    assert len(looked) == 1
    assert first.answer()["fence"] > lease.fence
    # The one in the middle is dead: the next release sees it, and no client waits for its ttl.
    first.ask("release")
    assert third.answer(timeout=10)["fence"] > lease.fence


def test_dead_waiters_at_the_head_of_the_line_are_skipped_in_one_step(held_before):
    """Each of them is looked at on the way to the first that lives: no offer goes to a dead waiter."""
    lease, (first, second, third) = held_before(3)
    for dead in (first, second):
        dead.worker.kill()

    lease.release()

    assert third.answer(timeout=10)["fence"] > lease.fence


def test_the_next_waiter_is_woken_before_old_versions_are_removed(held_before, monkeypatch):
    """The waiter needs the new version; the old ones can go later."""
    lease, (waiter,) = held_before(1)
    order = []
    checked, wake = VersionLog._check_overtaken, store.wake_session
    monkeypatch.setattr(VersionLog, "_check_overtaken", lambda *args: order.append("checked") or checked(*args))
    monkeypatch.setattr(store, "wake_session", lambda *args: order.append("woken") or wake(*args))

    lease.release()

    assert order == ["woken", "checked"]
    assert waiter.answer()["fence"] > lease.fence
