"""A reply that is lost never makes us lie: each command is sent again with its token, and means the same."""

import gc
import logging
import time

import pytest
from redis_faces import ACQUIRES, calls_of, paired

from holdfast import LeaseLost
from holdfast.commands import Acquire, Granted, Refused, ReleaseLease, Renew, Undo, WaiterHeartbeat
from tests.support.proxy import named

NEVER_S = 30.0


class Interrupted(BaseException):
    """Something like KeyboardInterrupt, which strikes a waiter in its sleep."""


def fence_of(reply):
    assert isinstance(reply, bytes), "a grant is told as its fence"
    return int(reply)


@pytest.mark.acceptance("A0-15", "G-2")
@pytest.mark.parametrize("timeout", [0, 5, None])
def test_an_acquire_whose_reply_was_lost_finds_its_own_token(place, timeout):
    """Otherwise a caller would wait for itself until the ttl ends; redis-py's Lock does."""
    proxy = place.proxy()
    client, other = place.connect(proxy.url), place.connect()
    proxy.drop_reply(when=ACQUIRES)
    began = time.monotonic()

    lease = client.lock("x").acquire(timeout=timeout)

    assert time.monotonic() - began < 5
    assert [fence_of(reply) for reply in proxy.dropped] == [lease.fence]
    assert client.show("x").fence == lease.fence
    assert other.lock("x").try_acquire() is None
    assert place.kinds("granted", "unavailable") == ["unavailable", "granted"]
    lease.release()
    assert other.show("x").holder is None
    other.lock("x").acquire(timeout=0).release()


@pytest.mark.acceptance("A0-15")
def test_an_acquire_that_never_arrived_is_sent_again(slow):
    """Nobody can tell it from a lost reply, so it is treated alike: the wire timeout decides."""
    proxy = slow.proxy()
    client = slow.connect(f"{proxy.url}?socket_timeout=0.3")
    client.lock("x").acquire().release()
    proxy.swallow(when=ACQUIRES)

    lease = client.lock("x").acquire(timeout=5)

    assert proxy.count(ACQUIRES) == 3
    assert client.show("x").fence == lease.fence
    lease.release()


def test_a_refusal_whose_reply_was_lost_is_still_a_refusal(place):
    """One decision, re-sends included: and nothing is left of the token."""
    proxy = place.proxy()
    client, holder = place.connect(proxy.url), place.connect()
    lease = holder.lock("x").acquire()
    proxy.drop_reply(when=ACQUIRES)

    assert client.lock("x").try_acquire() is None

    assert holder.show("x").waiters == ()
    place.until("undone")
    lease.release()


@pytest.mark.acceptance("G-2")
def test_a_release_whose_reply_was_lost_was_a_release(place):
    """It did release; `LeaseLost` would be a lie, and so would be any wait of the next one."""
    proxy = place.proxy()
    client, other = place.connect(proxy.url), place.connect()
    lease = client.lock("x").acquire()
    proxy.drop_reply(when=calls_of(ReleaseLease))

    lease.release()

    assert proxy.dropped == [1]
    assert place.kinds("lost") == []
    assert place.kinds("release_delayed", "released") == ["release_delayed", "released"]
    successor = other.lock("x").acquire(timeout=0)
    assert successor.fence > lease.fence
    successor.release()


def test_a_release_sent_again_finds_its_successor_and_leaves_it_alone(place):
    """Between the two copies somebody else may already have come, or come and gone."""
    proxy = place.proxy()
    client, other, third = place.connect(proxy.url), place.connect(), place.connect()
    lease = client.lock("x").acquire()

    def visit():
        other.lock("x").acquire().release()
        return third.lock("x").acquire()

    visiting = place.start(visit)
    place.until_queued(other, "x", 1)
    proxy.drop_reply(when=calls_of(ReleaseLease))
    lease.release()
    successor = visiting.result()

    assert third.show("x").fence == successor.fence
    assert place.kinds("lost") == []
    successor.release()


def test_a_lease_that_vanished_is_lost_even_if_its_acquire_was_sent_twice(place):
    """Only a *release* that was sent before excuses that the lease is no longer there."""
    proxy = place.proxy()
    client = place.connect(proxy.url)
    proxy.drop_reply(when=ACQUIRES)
    lease = client.lock("x").acquire(timeout=5)
    place.server.command("FLUSHALL")

    with pytest.raises(LeaseLost):
        lease.release()


@paired
@pytest.mark.acceptance("A0-11", "A0-13")
def test_a_renewal_whose_reply_was_lost_is_sent_again(place):
    """One lost reply is one warning, no loss: the trusted deadline is what counts."""
    proxy = place.proxy()
    client = place.connect(proxy.url)
    lease = client.lock("x", ttl=1.0).acquire()
    proxy.drop_reply(when=calls_of(Renew))

    place.until("renewed")

    assert [type(reply) for reply in proxy.dropped] == [int]  # the server's time: it was renewed
    assert place.kinds("renewal_failed", "renewed", "renewed_late", "lost") == ["renewal_failed", "renewed"]
    lease.check()
    lease.release()


@paired
@pytest.mark.parametrize("fault", ["drop_reply", "swallow"])
def test_an_undo_is_said_until_it_is_heard(place, fault):
    """What no caller owns is given back, even if the wire fails at that very moment."""
    proxy = place.proxy()
    client, holder, peer = place.connect(f"{proxy.url}?socket_timeout=0.3"), place.connect(), place.peer()
    lease = holder.lock("x").acquire()
    inner = client._client
    tokens = []

    async def interrupted(ask, until_ns):
        tokens.append(ask.token)
        raise Interrupted

    inner.transport.wait = interrupted
    getattr(proxy, fault)(when=calls_of(Undo))
    with pytest.raises(Interrupted):
        client.lock("x").acquire()
    place.until("undone")

    assert proxy.count(calls_of(Undo)) >= 2
    assert holder.show("x").waiters == ()
    assert peer.send(Acquire("x", tokens[0], "", 1000, wait=False)) == Refused("undone")
    lease.release()


@paired
def test_an_offer_whose_confirmation_was_lost_is_confirmed_again(place):
    """The grant is known to the server and to nobody else: the same fence, no second grant, no wait for an end."""
    proxy = place.proxy()
    client, holder = place.connect(proxy.url), place.connect()
    first = holder.lock("x").acquire()
    if place.face == "blocking":
        proxy.drop_reply(2, when=ACQUIRES)  # a thread's confirmation is sent before it sleeps
    waiting = place.start(lambda: client.lock("x").acquire(timeout=20))
    place.until_queued(holder, "x", 1)
    place.until("waiting")
    time.sleep(0.3)  # it has asked for the last time before it sleeps
    if place.face == "asyncio":
        proxy.drop_reply(when=ACQUIRES)

    first.release()
    lease = waiting.result()

    assert [fence_of(reply) for reply in proxy.dropped] == [lease.fence]
    assert holder.show("x").fence == lease.fence
    lease.release()
    assert holder.show("x").holder is None


@paired
def test_a_queued_waiter_whose_reply_was_lost_keeps_its_place(place):
    """The re-send finds the place that the first copy took."""
    proxy = place.proxy()
    early, late, holder = place.connect(proxy.url), place.connect(), place.connect()
    first = holder.lock("x").acquire()
    proxy.drop_reply(when=ACQUIRES)
    order = []
    waiting = [place.start(lambda: (early.lock("x").acquire(), order.append("early")))]
    place.until_queued(holder, "x", 1)
    waiting.append(place.start(lambda: (late.lock("x").acquire(), order.append("late"))))
    place.until_queued(holder, "x", 2)

    first.release()
    waiting[0].result()[0].release()
    waiting[1].result()[0].release()

    assert order == ["early", "late"]


@pytest.mark.acceptance("A0-14")
@pytest.mark.parametrize(("face", "broken"), [("blocking", "half_open"), ("asyncio", "refuse")])
def test_a_release_that_cannot_be_said_returns_with_a_warning_and_is_said_later(slow, caplog, broken):
    """The work is done and its result is owed now; the keeper goes on telling the server."""
    proxy = slow.proxy()
    client, other = slow.connect(proxy.url), slow.connect()
    lease = client.lock("x", ttl=NEVER_S).acquire()
    getattr(proxy, broken)()
    if broken == "refuse":
        proxy.cut()
    began = time.monotonic()

    with caplog.at_level(logging.WARNING, "holdfast"):
        lease.release()

    assert time.monotonic() - began < 2 + 2
    assert "release_delayed" in slow.kinds()
    assert "release_delayed 'x'" in caplog.text
    assert slow.kinds("lost") == []
    assert other.lock("x").try_acquire() is None
    proxy.accept()
    other.lock("x").acquire(timeout=10).release()


def test_a_client_that_is_refused_in_the_middle_of_its_patience_goes_on_asking(slow):
    """Lost after contact: retried with the same token until the timeout, and then told."""
    proxy = slow.proxy()
    client, holder = slow.connect(proxy.url), slow.connect()
    lease = holder.lock("x").acquire()
    waiting = slow.start(lambda: client.lock("x").acquire(timeout=15))
    slow.until_queued(holder, "x", 1)
    proxy.refuse()
    proxy.cut()
    slow.until("unavailable", 3)

    lease.release()
    time.sleep(0.3)
    proxy.accept()

    heir = waiting.result()
    assert heir.fence > lease.fence
    heir.release()


@pytest.mark.acceptance("A0-12")
def test_a_link_that_is_half_open_during_a_hold_is_told_as_a_loss_by_the_deadline(slow):
    """Nothing comes and nothing fails: only the holder's own clock can tell."""
    proxy = slow.proxy()
    client, other = slow.connect(proxy.url), slow.connect()
    began = time.monotonic()
    lease = client.lock("x", ttl=1.0).acquire()
    proxy.half_open()

    assert lease.lost.wait(5)
    told = time.monotonic() - began
    assert other.lock("x").try_acquire() is None or told > 1.0
    assert 0.9 < told < 1.0 + 0.5
    slow.until("lost")
    with pytest.raises(LeaseLost):
        lease.release()
    assert slow.kinds("lost") == ["lost"]
    proxy.accept()
    other.lock("x").acquire(timeout=5).release()


@pytest.mark.parametrize("face", ["asyncio"])
def test_a_slow_link_shortens_trust_and_loses_nothing(slow):
    """Trust is counted from before the command was sent, so a slow answer makes it shorter, never longer."""
    proxy = slow.proxy()
    client = slow.connect(proxy.url)
    client.lock("y").acquire().release()
    proxy.delay(0.2)

    lease = client.lock("x", ttl=1.8).acquire()
    left = lease.remaining()
    slow.until("renewed")
    lease.release()

    assert left <= 1.8 * 0.95 - 0.2
    assert slow.kinds("lost", "renewal_failed") == []


@pytest.mark.parametrize("face", ["blocking"])
def test_an_answer_that_always_comes_too_late_ends_with_the_patience(slow):
    """A lease shorter than the way to the server cannot be had; the caller must hear that in time."""
    proxy = slow.proxy()
    client, other = slow.connect(proxy.url), slow.connect()
    client.lock("y").acquire().release()
    proxy.delay(0.4)
    began = time.monotonic()

    error = slow.start(lambda: client.lock("x", ttl=0.3).acquire(timeout=1.5)).error(15)

    assert type(error).__name__ in ("Unavailable", "NotAcquired")
    assert time.monotonic() - began < 1.5 + 2 + 1
    proxy.accept()
    other.lock("x").acquire(timeout=5).release()


@pytest.mark.parametrize("face", ["blocking"])
def test_a_mark_whose_reply_was_lost_harms_nobody(slow):
    """A sign of life may be repeated as often as one likes."""
    proxy = slow.proxy()
    client, holder = slow.connect(proxy.url), slow.connect()
    lease = holder.lock("x").acquire()
    waiting = slow.start(lambda: client.lock("x").acquire(timeout=20))
    slow.until_queued(holder, "x", 1)
    proxy.drop_reply(when=calls_of(WaiterHeartbeat))
    slow.until("unavailable", timeout=15)

    lease.release()

    heir = waiting.result()
    assert heir.fence > lease.fence
    heir.release()


@pytest.mark.acceptance("A0-15")
def test_a_second_copy_that_arrives_after_the_release_is_refused(sync):
    """The first copy of a re-sent acquire may still be on its way when all is over."""
    peer = sync.peer()
    ask = Acquire("x", "ab", "", 1000, wait=True)
    assert isinstance(peer.send(ask), Granted)
    peer.send(ReleaseLease("x", "ab", tombstone=True))
    assert isinstance(peer.send(Acquire("x", "cd", "", 200, wait=True)), Granted)
    peer.send(ReleaseLease("x", "cd"))

    assert peer.send(ask) == Refused("released")


@pytest.mark.parametrize("face", ["asyncio"])
def test_a_ring_that_came_before_anybody_listened_is_made_up_for(slow):
    """The first waiter opens the ear for all; whoever queued meanwhile must not sleep over a ring that it missed."""
    proxy = slow.proxy()
    holder, client = slow.connect(), slow.connect(proxy.url)
    one, two = holder.lock("one").acquire(), holder.lock("two").acquire()
    proxy.delay(0.5, when=named("SUBSCRIBE"))
    first = slow.start(lambda: client.lock("one").acquire())
    slow.until_queued(holder, "one", 1)
    second = slow.start(lambda: client.lock("two").acquire())
    slow.until_queued(holder, "two", 1)

    released = time.monotonic()
    two.release()
    second.result().release()

    assert time.monotonic() - released < 1.2  # the next mark would come after 1.7
    one.release()
    first.result().release()


def test_a_lease_that_was_hard_to_get_can_be_dropped_as_any_other(place):
    """At once, by the last who forgets it: trouble on its way must not keep it, nor take from a caller's own error."""
    proxy, callers = place.proxy(), LookupError("of the caller")
    client = place.connect(proxy.url)
    client.lock("x").acquire().release()
    for number in (1, 2):
        proxy.drop_reply(number, when=ACQUIRES)
    gc.disable()
    try:
        try:
            raise callers
        except LookupError:
            leases = [client.lock("x", timeout=20).acquire()]
        with pytest.warns(ResourceWarning, match="dropped without a release"):
            place.forget(leases)
    finally:
        gc.enable()
    assert "unavailable" in place.kinds()
    assert callers.__traceback__ is not None
