"""Another run of the server answers: what it forgot is told at once, and what was known of it is waited out."""

import time

import pytest
from redis_faces import paired

from holdfast import LeaseLost, NotAcquired
from holdfast.commands import READ, RWLOCK, SEMAPHORE, WRITE, Acquire, Borrow, Granted
from holdfast.testing import eventually
from tests.support.proxy import named

NEXT_RENEWAL_S = 10


def until_met(place):
    """Wait until the keeper has greeted the server: it does so for leases that are held for a second."""
    eventually(lambda: b"cmd=info" in place.server.command("CLIENT", "LIST"), 10, "the keeper's greeting")


@pytest.mark.parametrize("face", ["blocking"])
def test_holders_hear_of_a_server_that_forgot_them_long_before_their_next_renewal(server, new_server, place_on):
    """The keeper looks after its connection every second; the first answer of the new run tells which one it is."""
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
def test_a_new_run_with_all_its_data_takes_nothing_away(server, new_server, place_on):
    """Whether it forgot is asked, not guessed: every lease is renewed at once, and stands."""
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
def test_a_waiter_waits_out_the_holder_that_the_server_forgot(server, new_server, place_on):
    """It was told until when somebody holds. The new run would let it in at once; it keeps out, and others too."""
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
def test_a_waiter_for_a_seat_or_a_side_waits_out_whom_the_server_forgot(new_server, place_on, way, held):
    """As one that waits for a lock does: two writers are no better than two holders."""
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
def test_waiters_for_several_seats_wait_out_all_of_them(new_server, place_on):
    """Each of them could wait for the first seat alone; but then more would be inside than there are permits."""
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
def test_whoever_waited_for_an_item_waits_out_what_was_lent_when_the_pool_is_there_again(new_server, place_on):
    """A server without data has no pool: that is told. Set up anew, it would lend what somebody may still use."""
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
def test_after_a_restart_with_its_data_nobody_waits_out_what_was_given_back(new_server, place_on):
    """An item may cool for an hour. Whoever has heard of it is granted another one by the same record, and takes it."""
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
def test_a_client_does_not_take_again_what_it_has_just_lost(new_server, place_on):
    """Its own work may still be settling. One that never heard of the lease is let in: that is not promised."""
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
def test_whoever_has_patience_waits_out_the_work_that_the_server_forgot(new_server, place_on):
    """Work that is to be done once is begun again when nobody can trust the old lease any more."""
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
def test_a_short_lease_costs_no_look_at_the_engine(new_server, place_on):
    """Only who holds or waits for a second has the engine watched; all else is one connection and two round trips."""
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
