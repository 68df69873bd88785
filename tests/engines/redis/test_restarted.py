"""A restarted server answers: holders learn their losses at once, and clients wait for leases that they knew of."""

import time

import pytest
from redis_faces import paired

from holdfast import LeaseLost, NotAcquired
from holdfast.commands import READ, RWLOCK, SEMAPHORE, WRITE, Acquire, Borrow, Granted
from holdfast.testing import eventually
from tests.support.proxy import named

NEXT_RENEWAL_S = 10


def until_met(place):
    """Wait until the keeper has connected to the server: it does so for leases that are held for a second."""
    eventually(lambda: b"cmd=info" in place.server.command("CLIENT", "LIST"), 10, "the keeper's greeting")


@pytest.mark.parametrize("face", ["blocking"])
def test_holders_learn_of_a_restart_without_data_long_before_their_next_renewal(server, new_server, place_on):
    """The keeper checks its connection every second; the first reply of the new run has its run id."""
    server = new_server(server.kind)
    place = place_on(server)
    client = place.connect()
    leases = [client.lock(f"x{number}", ttl=3 * NEXT_RENEWAL_S).acquire() for number in range(3)]
    until_met(place)

    server.restart(keep_data=False)
    began = time.monotonic()

    eventually(lambda: all(lease.lost for lease in leases), 8)
    assert time.monotonic() - began < NEXT_RENEWAL_S - 2
    assert place.kinds("engine_restarted") == ["engine_restarted"]
    assert place.kinds("lost") == ["lost"] * 3
    for lease in leases:
        with pytest.raises(LeaseLost):
            lease.release()


@pytest.mark.parametrize("face", ["blocking"])
def test_a_restart_with_all_data_loses_no_lease(server, new_server, place_on):
    """The keeper does not guess: it renews every lease at once, and all of them stand."""
    server = new_server(server.kind, appendonly=True)
    place = place_on(server)
    client = place.connect()
    lease = client.lock("x", ttl=3 * NEXT_RENEWAL_S).acquire()
    until_met(place)

    server.restart()

    place.until("engine_restarted", timeout=8)
    place.until("renewed", timeout=8)
    lease.check()
    lease.release()
    assert place.kinds("lost") == []


@paired
def test_a_waiter_waits_until_the_forgotten_lease_has_expired(server, new_server, place_on):
    """The new run would grant the lease at once. The waiter knows until when it lasts, waits, and blocks others."""
    server = new_server(server.kind)
    place = place_on(server)
    waiter, other = place.connect(), place.connect()
    peer = place.peer()
    sent = time.monotonic()
    held = peer.send(Acquire("x", "frozen", "", 3500, wait=False))
    assert isinstance(held, Granted)
    waiting = place.start(lambda: (waiter.lock("x", ttl=3).acquire(timeout=30), time.monotonic()))
    place.until("waiting")  # the server may know that it waits before it knows itself for whom

    server.restart(keep_data=False)

    eventually(lambda: server.command("EXISTS", "hf2:{x}") == 1, 5)
    assert other.lock("x").try_acquire() is None
    lease, granted = waiting.result()
    assert granted - sent > 3.5 - 0.5
    assert lease.fence > held.fence
    lease.release()
    assert place.kinds("lost") == []


def seat(client):
    return client.semaphore("x", permits=1, ttl=3)


def writer(client):
    return client.rwlock("x", ttl=3).write()


@pytest.mark.parametrize(
    ("way", "held"),
    [
        (seat, [Borrow("x", "frozen", "", 3500, wait=False, permits=1, kind=SEMAPHORE)]),
        (writer, [Borrow("x", "frozen", "", 3500, False, 0, WRITE, 1, kind=RWLOCK)]),
        (writer, [Borrow("x", f"frozen {ms}", "", ms, False, 0, READ, 1, kind=RWLOCK) for ms in (2000, 3500)]),
    ],
    ids=["a seat", "a writer", "readers"],
)
@pytest.mark.parametrize("face", ["blocking"])
def test_a_waiter_for_a_permit_or_a_mode_waits_until_forgotten_leases_have_expired(new_server, place_on, way, held):
    """As a waiter for a lock does: two writers are as bad as two holders."""
    server = new_server()
    place = place_on(server)
    waiter, other = place.connect(), place.connect()
    peer = place.peer()
    sent = time.monotonic()
    assert all(isinstance(peer.send(borrow), Granted) for borrow in held)
    waiting = place.start(lambda: (way(waiter).acquire(timeout=30), time.monotonic()))
    lender = other.semaphore("x", permits=1) if way is seat else other.rwlock("x")
    place.until("waiting")

    server.restart(keep_data=False)

    eventually(lambda: lender.stats().lent == 1, 5)
    assert way(other).try_acquire() is None
    lease, granted = waiting.result()
    assert granted - sent > 3.5 - 0.5
    lease.release()
    assert place.kinds("lost") == []


@pytest.mark.parametrize("face", ["blocking"])
def test_waiters_for_several_permits_wait_until_all_forgotten_ones_have_expired(new_server, place_on):
    """If each waited for the first permit alone, there would be more holders than permits."""
    server = new_server()
    place = place_on(server)
    peer, sent = place.peer(), time.monotonic()
    for ms in (1500, 3500):
        assert isinstance(peer.send(Borrow("x", f"frozen {ms}", "", ms, False, permits=2, kind=SEMAPHORE)), Granted)
    ways = [place.connect().semaphore("x", permits=2, ttl=3) for _ in range(2)]
    waiting = [place.start(lambda way=way: (way.acquire(timeout=30), time.monotonic())) for way in ways]
    place.until("waiting", 2)

    server.restart(keep_data=False)

    for seat, granted in [each.result() for each in waiting]:
        assert granted - sent > 3.5 - 0.5
        seat.release()


@pytest.mark.parametrize("face", ["blocking"])
def test_a_waiter_for_an_item_waits_until_forgotten_items_have_expired(new_server, place_on):
    """A server without data has no pool: an error. A new pool would lend items that may still be in use."""
    server = new_server()
    place = place_on(server)
    waiter, other, peer = place.connect(), place.connect(), place.peer()
    pool = waiter.pool("x", ttl=3)
    other.pool("x").set_items(["a", "b"])
    sent = time.monotonic()
    for ms, cooldown_ms in ((1500, 0), (2500, 1000)):  # the second one rests after its end
        assert isinstance(peer.send(Borrow("x", f"frozen {ms}", "", ms, False, cooldown_ms)), Granted)
    waiting = place.start(lambda: pool.borrow(timeout=30))
    place.until("waiting")

    server.restart(keep_data=False)

    with pytest.raises(NotAcquired) as empty:
        waiting.result()
    assert empty.value.reason == "empty pool"
    other.pool("x").set_items(["a", "b"])
    with pytest.raises(NotAcquired) as early:
        pool.borrow(timeout=0)
    assert early.value.reason == "engine restarted"
    with pool.borrow(timeout=30):
        assert time.monotonic() - sent > 3.5 - 0.5
    pool.set_items([])


@pytest.mark.parametrize("face", ["blocking"])
def test_after_a_restart_with_data_no_waiter_waits_for_returned_items(new_server, place_on):
    """An item may cool for an hour. A waiter that knows of it gets another one from the same record, and takes it."""
    server = new_server(appendonly=True)
    place = place_on(server)
    holder, waiter = place.connect(), place.connect()
    pool = holder.pool("x", ttl=60)
    pool.set_items(["a", "b"])
    cooled, item = pool.borrow(), pool.borrow()
    cooled.cool(3600)
    with pytest.raises(NotAcquired) as told:
        waiter.pool("x").borrow(timeout=0.3)
    assert told.value.reason == "all busy"

    server.restart()
    place.until("engine_restarted", timeout=10)
    item.release()

    got = waiter.pool("x").borrow(timeout=5)
    assert (got.name, got.fence > item.fence) == (item.name, True)
    assert waiter._client.engine.restarts == 1, "it has noticed, and yet waits for nobody"
    got.release()
    pool.cool(cooled.name, 0)
    pool.set_items([])


@pytest.mark.parametrize("face", ["blocking"])
def test_a_client_does_not_acquire_a_lease_that_it_has_just_lost(new_server, place_on):
    """Its own work may still be running. A client that never knew of the lease gets it: that is not promised."""
    server = new_server()
    place = place_on(server)
    client, stranger = place.connect(), place.connect()
    lost = client.lock("x", ttl=30).acquire()
    until_met(place)

    server.restart(keep_data=False)
    eventually(lambda: lost.lost, 8)

    with pytest.raises(NotAcquired) as refusal:
        client.lock("x").acquire(timeout=0.3)
    assert refusal.value.reason == "engine restarted"
    assert 10 < refusal.value.remaining < 30
    assert client.lock("x").try_acquire() is None
    with pytest.raises(LeaseLost):
        lost.release()
    eventually(lambda: stranger.show("x").holder is None, 5)
    stranger.lock("x").acquire(timeout=5).release()
    client.lock("y").acquire(timeout=5).release()


@pytest.mark.parametrize("face", ["blocking"])
def test_a_waiter_for_once_waits_until_the_forgotten_work_has_expired(new_server, place_on):
    """The work of `once` begins again when no client can trust the old lease any more."""
    server = new_server()
    place = place_on(server)
    client = place.connect()
    once = client.once("payments", lease=4)
    with pytest.raises(LeaseLost), once.first("42") as lost:
        place.until("renewed", timeout=8)
        server.restart(keep_data=False)
        eventually(lambda: lost.lost, 8)

    assert once.call("42", lambda: "again", timeout=30) == "again"


@pytest.mark.parametrize("face", ["blocking"])
def test_a_short_lease_costs_no_check_of_the_server(new_server, place_on):
    """Only a client that holds or waits for a second checks it; other pairs are one connection and two round trips."""
    place = place_on(new_server())
    proxy = place.proxy()
    client = place.connect(proxy.url)

    for _ in range(20):
        lease = client.lock("x").acquire()
        time.sleep(0.01)
        lease.release()

    assert proxy.connections == 1
    assert proxy.count(named("INFO")) == 1  # its greeting
    assert proxy.count(named("EVALSHA", "EVAL")) == 40
