"""The server restarts, with and without its data, under leases and waiters."""

import time

import pytest
from redis_faces import paired

from holdfast import LeaseLost
from holdfast.commands import Acquire, Granted
from holdfast.testing import eventually


@paired
@pytest.mark.acceptance("G-1")
def test_a_restart_without_data_tells_holders_and_repeats_no_fence(server, new_server, place_on):
    """The server has forgotten its leases: the holder learns it at its next renewal, and the next fence is larger."""
    server = new_server(server.kind)
    place = place_on(server)
    holder, waiter, third = place.connect(), place.connect(), place.connect()
    held = holder.lock("x", ttl=2).acquire()
    waiting = [place.start(lambda c=c: c.lock("x", ttl=2).acquire(timeout=20)) for c in (waiter, third)]
    place.until_queued(holder, "x", 2)

    server.restart(keep_data=False)

    eventually(lambda: any(one.done() for one in waiting), 15)
    first = next(one for one in waiting if one.done()).result()
    assert first.fence > held.fence
    eventually(lambda: held.lost, 10)
    with pytest.raises(LeaseLost):
        held.release()
    first.check()
    first.release()
    second = max((one.result() for one in waiting), key=lambda lease: lease.fence)
    assert second.fence > first.fence
    second.release()
    assert place.kinds("lost") == ["lost"]


@paired
@pytest.mark.acceptance("A0-6")
def test_a_restart_with_its_data_loses_nothing(server, new_server, place_on):
    """The record, the waiting line and the fences are stored like any other data."""
    server = new_server(server.kind, appendonly=True)
    place = place_on(server)
    holder, waiter, third = place.connect(), place.connect(label="2"), place.connect(label="3")
    held = holder.lock("x", ttl=4).acquire()
    waiting = []
    for client in (waiter, third):
        waiting.append(place.start(lambda c=client: c.lock("x", ttl=4).acquire(timeout=30)))
        place.until_queued(holder, "x", len(waiting))

    server.restart()

    place.until("renewed")
    held.check()
    assert holder.show("x").fence == held.fence
    assert [owner.label for owner in holder.show("x").waiters] == ["2", "3"]
    held.release()
    second = waiting[0].result()
    second.release()
    third_lease = waiting[1].result()
    third_lease.release()
    assert held.fence < second.fence < third_lease.fence
    assert place.kinds("lost") == []


def test_a_lease_that_expired_during_an_outage_stays_expired(new_server, place_on):
    """The server's clock went on; the first acquire after the restart gets a newer fence."""
    server = new_server(appendonly=True)
    place = place_on(server)
    holder, other = place.connect(), place.connect()
    held = holder.lock("x", ttl=0.6).acquire()
    server.kill()
    assert held.lost.wait(5)
    server.start()

    lease = other.lock("x").acquire(timeout=5)

    assert lease.fence > held.fence
    with pytest.raises(LeaseLost) as loss:
        held.release()
    assert loss.value.reason == "expired"
    assert "before its ttl was over" not in str(loss.value)
    other.show("x")
    lease.check()
    lease.release()


@paired
def test_the_loss_of_a_forgotten_lease_says_that_its_ttl_was_not_over(place):
    """After FLUSHALL, an eviction or a clock jump the holder was not late, and the error says so."""
    client = place.connect()
    forgotten, broken = (client.lock(name, ttl=2).acquire() for name in ("forgotten", "broken"))

    place.server.command("DEL", "hf2:{forgotten}")
    client.break_lease("broken", "because")

    why = {}
    for lease in (forgotten, broken):
        assert lease.lost.wait(10)
        with pytest.raises(LeaseLost) as loss:
            lease.release()
        why[lease.name] = (loss.value.reason, loss.value.detail.partition(":")[0])
    assert why == {"forgotten": ("expired", "before its ttl was over"), "broken": ("broken", "because")}
    assert len([event for event in place.events if event.detail.startswith("expired before its ttl was over")]) == 1


@pytest.mark.parametrize("face", ["blocking"])
def test_fences_never_repeat_over_many_restarts(server, new_server, place_on):
    """Fences are microseconds of the server's clock, so they grow through a loss of all data."""
    server = new_server(server.kind)
    fences = []
    for _ in range(3):
        place = place_on(server)
        peer = place.peer()
        fences += [peer.send(Acquire(name, "ab", "", 200, wait=False)).fence for name in ("x", "y", "z")]
        place.close()
        server.restart(keep_data=False)

    assert fences == sorted(set(fences))


def test_a_short_restart_does_not_affect_a_holder_between_two_renewals(new_server, place_on):
    """No command is sent in the meantime, so none fails; the idle connection is checked before use."""
    server = new_server(appendonly=True)
    place = place_on(server)
    client = place.connect()
    lease = client.lock("x", ttl=20).acquire()

    server.restart()
    time.sleep(0.6)
    lease.release()

    assert place.kinds("lost", "release_delayed") == [] or place.face == "asyncio"
    assert place.kinds("released") == ["released"]
    assert isinstance(place.peer().send(Acquire("x", "ab", "", 200, wait=False)), Granted)
