"""A lost reply never leads to a false answer: the client resends each command with its token."""

import asyncio
import gc
import logging
import time

import pytest
from redis_faces import ACQUIRES, calls_of, paired

from holdfast import LeaseLost, Unavailable
from holdfast.commands import Acquire, Granted, Refused, ReleaseLease, Renew, Undo, WaiterHeartbeat
from tests.support.cancelled import cancel_reserves
from tests.support.proxy import named

NEVER_S = 30.0


class Interrupted(BaseException):
    """An error like KeyboardInterrupt, which hits a sleeping waiter."""


def fence_of(reply):
    assert isinstance(reply, bytes), "the reply of a grant is its fence"
    return int(reply)


@pytest.mark.acceptance("A0-15", "G-2")
@pytest.mark.parametrize("timeout", [0, 5, None])
def test_an_acquire_whose_reply_was_lost_finds_its_own_token(place, timeout):
    """Otherwise a caller would wait for itself until the ttl ends, as with redis-py's Lock."""
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
    """The client cannot tell it from a lost reply, so both are handled alike, by the wire timeout."""
    proxy = slow.proxy()
    client = slow.connect(f"{proxy.url}?socket_timeout=0.3")
    client.lock("x").acquire().release()
    proxy.swallow(when=ACQUIRES)

    lease = client.lock("x").acquire(timeout=5)

    assert proxy.count(ACQUIRES) == 3
    assert client.show("x").fence == lease.fence
    lease.release()


def test_a_refusal_whose_reply_was_lost_is_still_a_refusal(place):
    """One decision includes resends, and nothing is left of the token."""
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
    """The release was applied, so `LeaseLost` would be false, and the next waiter need not wait."""
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
    """Another holder may have come, or come and gone, between the two copies."""
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


def test_a_vanished_lease_is_lost_even_if_its_acquire_was_resent(place):
    """Only an earlier *release* explains a missing lease."""
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
    """One lost reply is one warning and no loss; the trusted deadline counts."""
    proxy = place.proxy()
    client = place.connect(proxy.url)
    lease = client.lock("x", ttl=1.0).acquire()
    proxy.drop_reply(when=calls_of(Renew))

    place.until("renewed")

    assert [type(reply) for reply in proxy.dropped] == [int]  # the server's time: the renewal was applied
    assert place.kinds("renewal_failed", "renewed", "renewed_late", "lost") == ["renewal_failed", "renewed"]
    lease.check()
    lease.release()


@paired
@pytest.mark.parametrize("fault", ["drop_reply", "swallow"])
def test_an_undo_is_sent_until_it_is_answered(place, fault):
    """A grant without a caller is undone, even if the connection fails at that moment."""
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
    """Only the server knows of the grant; the resend gets the same fence without a wait."""
    proxy = place.proxy()
    client, holder = place.connect(proxy.url), place.connect()
    first = holder.lock("x").acquire()
    if place.face == "blocking":
        proxy.drop_reply(2, when=ACQUIRES)  # a thread sends its confirmation before it sleeps
    waiting = place.start(lambda: client.lock("x").acquire(timeout=20))
    place.until_queued(holder, "x", 1)
    place.until("waiting")
    time.sleep(0.3)  # it has sent its last command before it sleeps
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
    """The resend finds the place of the first copy."""
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
def test_a_release_that_cannot_be_sent_returns_with_a_warning_and_is_sent_later(slow, caplog, broken):
    """The caller gets its result now, and the keeper continues to send the release."""
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


def test_a_client_that_loses_contact_retries_until_its_timeout(slow):
    """After contact the client retries with the same token until the timeout, and then raises."""
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

    next_holder = waiting.result()
    assert next_holder.fence > lease.fence
    next_holder.release()


@pytest.mark.acceptance("A0-12")
def test_a_half_open_connection_causes_a_loss_at_the_deadline(slow):
    """No data and no error arrive, so only the holder's own clock decides."""
    proxy = slow.proxy()
    client, other = slow.connect(proxy.url), slow.connect()
    began = time.monotonic()
    lease = client.lock("x", ttl=1.0).acquire()
    proxy.half_open()

    assert lease.lost.wait(5)
    lost_after = time.monotonic() - began
    assert other.lock("x").try_acquire() is None or lost_after > 1.0
    assert 0.9 < lost_after < 1.0 + 0.5
    slow.until("lost")
    with pytest.raises(LeaseLost):
        lease.release()
    assert slow.kinds("lost") == ["lost"]
    proxy.accept()
    other.lock("x").acquire(timeout=5).release()


@pytest.mark.parametrize("face", ["asyncio"])
def test_a_slow_link_shortens_trust_and_loses_nothing(slow):
    """Trust counts from before the command was sent, so a slow answer shortens it."""
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
def test_answers_that_are_always_late_end_with_the_timeout(slow):
    """A lease shorter than the round trip is impossible, and the caller must learn it in time."""
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
def test_a_heartbeat_whose_reply_was_lost_does_no_harm(slow):
    """A heartbeat may be repeated at any time."""
    proxy = slow.proxy()
    client, holder = slow.connect(proxy.url), slow.connect()
    lease = holder.lock("x").acquire()
    waiting = slow.start(lambda: client.lock("x").acquire(timeout=20))
    slow.until_queued(holder, "x", 1)
    proxy.drop_reply(when=calls_of(WaiterHeartbeat))
    slow.until("unavailable", timeout=15)

    lease.release()

    next_holder = waiting.result()
    assert next_holder.fence > lease.fence
    next_holder.release()


@pytest.mark.acceptance("A0-15")
def test_a_second_copy_that_arrives_after_the_release_is_refused(sync):
    """The first copy of a resent acquire may still be on its way after the release."""
    peer = sync.peer()
    ask = Acquire("x", "ab", "", 1000, wait=True)
    assert isinstance(peer.send(ask), Granted)
    peer.send(ReleaseLease("x", "ab", tombstone=True))
    assert isinstance(peer.send(Acquire("x", "cd", "", 200, wait=True)), Granted)
    peer.send(ReleaseLease("x", "cd"))

    assert peer.send(ask) == Refused("released")


@pytest.mark.parametrize("face", ["asyncio"])
def test_a_wake_up_before_the_listener_started_is_made_up_for(slow):
    """The first waiter opens the listener for all; others must not sleep through a missed wake-up."""
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

    assert time.monotonic() - released < 1.2  # the next heartbeat would come after 1.7 s
    one.release()
    first.result().release()


def test_a_lease_after_errors_can_be_dropped_like_any_other(place):
    """An error during its acquire must not keep a reference to the lease."""
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


@pytest.mark.finding("X7")
def test_a_reserve_may_be_retried_after_a_swallowed_reply(place):
    """The first call may have reserved the whole budget; its retry gives that back and reserves it again."""
    proxy = place.proxy()
    client, other = place.connect(proxy.url), place.connect()
    budget = client.budget("fees", limit=10, hold=3600)
    budget.peek("ann")
    proxy.drop_answer(lambda reply: isinstance(reply, list) and reply[0] in ("balance", b"balance"), refuse=True)

    with pytest.raises(Unavailable) as error:
        budget.reserve("ann", 10)
    proxy.accept()
    reserved = budget.reserve("ann", 10)

    assert error.value.retryable
    assert other.budget("fees", limit=10).peek("ann")[:2] == (0, 10)
    reserved.settle(4)
    assert other.budget("fees", limit=10).peek("ann")[:2] == (4, 0)


@pytest.mark.finding("T8")
def test_a_reserve_that_is_cancelled_at_any_step_leaves_nothing_reserved(server):
    """The task has gone while its command was on its way; the keeper gives the amount back."""
    assert asyncio.run(cancel_reserves(server.url)) >= 4
