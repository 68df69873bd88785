"""From a release to the next grant: nothing stands between them that could come later, or not at all."""

from __future__ import annotations

import pytest

from holdfast.engines.files import engine as store
from holdfast.engines.files.log import Register
from holdfast.testing import eventually


@pytest.fixture
def held_before(connect, child):
    """A lease of this process, and children that wait for it in this order."""

    def held_before(waiters):
        client = connect()
        lease, line = client.lock("x", ttl=30).acquire(), [child() for _ in range(waiters)]
        for place, waiter in enumerate(line):
            waiter.say("acquire")
            eventually(lambda place=place: len(client.show("x").waiters) == place + 1)
        return lease, line

    return held_before


def test_a_release_asks_about_no_more_waiters_than_it_has_to(held_before, monkeypatch):
    """Whether a client lives is a handful of system calls, and the line may be long: whoever is first gets it."""
    lease, (first, second, third) = held_before(3)
    second.worker.kill()
    looked = []
    look = store.look

    def counted(ground, dates, client):
        looked.append(client)
        return look(ground, dates, client)

    monkeypatch.setattr(store, "look", counted)
    lease._client.keeper.stop()  # its marks look too
    lease.release()
    monkeypatch.undo()

    assert len(looked) == 1
    assert first.answer()["fence"] > lease.fence
    # The one in the middle is dead: that is seen when its turn comes, and costs nobody a ttl.
    first.ask("release")
    assert third.answer(timeout=10)["fence"] > lease.fence


def test_the_dead_at_the_head_of_the_line_are_passed_over_in_one_step(held_before):
    """Each of them is looked at on the way to the first that lives: none is offered what it cannot take."""
    lease, (first, second, third) = held_before(3)
    for dead in (first, second):
        dead.worker.kill()

    lease.release()

    assert third.answer(timeout=10)["fence"] > lease.fence


def test_the_next_is_rung_before_the_giver_tidies_up(held_before, monkeypatch):
    """What the waiter needs is the sheet; that older ones go may come later."""
    lease, (waiter,) = held_before(1)
    order = []
    seen, wake = Register._seen, store.wake_session
    monkeypatch.setattr(Register, "_seen", lambda *args: order.append("tidied") or seen(*args))
    monkeypatch.setattr(store, "wake_session", lambda *args: order.append("rung") or wake(*args))

    lease.release()

    assert order == ["rung", "tidied"]
    assert waiter.answer()["fence"] > lease.fence
