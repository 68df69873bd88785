"""How long a lease lasts: as long as it is renewed, never longer than its holder may believe."""

import threading
import time
from contextlib import suppress
from itertools import pairwise

import pytest

from holdfast import LeaseLost
from holdfast.clock import NEVER_NS
from holdfast.commands import Acquire, Busy, Granted, NotHeld, Release, Renew, Renewed, Show
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together, until_waiters


@pytest.mark.acceptance("A0-7", "G-4")
@together
def test_work_of_three_ttls_stays_ours(face):
    """A holder that lives is not replaced, however slow it is."""
    holder, other = face.connect(), face.connect()
    with holder.lock("x", ttl=0.4) as lease:
        end = time.monotonic() + 1.3
        tries = 0
        while time.monotonic() < end:
            assert other.lock("x").try_acquire() is None
            lease.check()
            assert lease.remaining() > 0
            tries += 1
            time.sleep(0.02)

        assert tries > 10
        assert other.show("x").fence == lease.fence
    assert not lease.lost


@pytest.mark.acceptance("G-4", "C-14")
@together
def test_a_silent_holder_knows_of_its_loss_before_its_successor_enters(face):
    """The holder's trust ends earlier than the lease, so that two never believe at the same time."""
    events = []
    holder, other = face.connect(observer=events.append), face.connect()
    asked = time.monotonic()
    lease = holder.lock("x", ttl=1).acquire()
    face.wire(holder).fail(Renew)
    waiting = face.start(lambda: (other.lock("x", timeout=10).acquire(), bool(lease.lost), lease.remaining()))

    successor, known, remaining = waiting.result()

    assert known
    assert remaining == 0
    assert time.monotonic() - asked > 0.999
    assert successor.fence > lease.fence
    told = eventually(lambda: [event.detail for event in events if event.kind == "lost"])
    assert [detail.split()[0] for detail in told] == ["expired"]
    assert "as the law demands" in told[0], "why it was not renewed is part of the loss"
    with pytest.raises(LeaseLost):
        lease.check()
    successor.check()
    successor.release()


@pytest.mark.acceptance("A0-11")
@together
def test_one_failed_renewal_is_borne(face):
    """Two renewals may fail before the lease does: one is warned about, and nothing else happens."""
    events = []
    holder = face.connect(observer=events.append)
    wire = face.wire(holder)
    wire.fail(Renew, times=1)
    with holder.lock("x", ttl=0.9) as lease:
        eventually(lambda: "renewed" in [event.kind for event in events])
        lease.check()

    kinds = [event.kind for event in events]
    assert kinds.count("renewal_failed") == 1
    assert kinds.index("renewal_failed") < kinds.index("renewed")
    assert "lost" not in kinds
    assert kinds[-1] == "released"


@pytest.mark.acceptance("A0-12")
@together
def test_renewals_that_fail_past_the_deadline_lose_the_lease_once(face):
    """A loss is told once: to the observer, to the callback, at the end of the block."""
    events, calls = [], []
    holder = face.connect(observer=events.append)
    face.wire(holder).fail(Renew)
    # Long enough for several of them, also where a thread has to wait for its turn on a busy machine.
    with pytest.raises(LeaseLost) as loss, holder.lock("x", ttl=3, on_loss=calls.append) as lease:
        assert lease.lost.wait(20)
        time.sleep(0.2)
        assert lease.lost

    kinds = [event.kind for event in events]
    assert kinds.count("lost") == 1
    assert kinds.count("renewal_failed") >= 2
    assert len(calls) == 1
    assert (loss.value.reason, loss.value.fence) == ("expired", lease.fence)


@pytest.mark.acceptance("A0-12")
@together
def test_a_renewal_that_hangs_does_not_hide_the_loss(face):
    """The keeper never waits for an answer beyond the moment at which it has to tell."""
    holder = face.connect()
    face.wire(holder).fail(Renew, hangs=True)
    sent = time.monotonic()
    lease = holder.lock("x", ttl=0.6).acquire()

    assert lease.lost.wait(5)

    assert time.monotonic() - sent < 0.6 + 0.4
    assert lease.lost.reason == "expired"


@pytest.mark.acceptance("A0-13")
def test_short_work_under_a_long_ttl_sends_no_renewal(face):
    """What ends before a renewal is due costs one acquire and one release."""
    client = face.connect()
    wire = face.wire(client)
    for _ in range(2):
        with client.lock("x", ttl=1):
            time.sleep(0.09)

    assert [type(command) for command in wire.commands()] == [Acquire, Release, Acquire, Release]


@pytest.mark.acceptance("A0-13")
@together
def test_renewals_are_at_least_a_tenth_of_a_second_apart(face):
    """However short the ttl, the engine is not to be hammered; and yet the lease stands.

    A busy machine may be too slow for such a lease; then it is tried again, and not hammered either.
    """
    client = face.connect()
    wire = face.wire(client)

    def lasted():
        before, began = len(wire.moments(Renew)), time.monotonic()
        lease = client.lock("x", ttl=0.4).acquire(timeout=20)
        lease.lost.wait(1)
        span, sent = time.monotonic() - began, len(wire.moments(Renew)) - before
        assert sent <= 1 + span / 0.1
        with suppress(LeaseLost):
            lease.release()
        return span

    eventually(lambda: lasted() >= 1, 30, "a second without a loss")
    assert wire.commands(Renew)


def test_a_holder_that_asks_again_has_its_ttl_restarted(engine):
    """The holder counts its trust from the re-send, so the engine must count from there too."""
    peer, other = engine.peer(), engine.peer()
    ask = Acquire("x", "token", "", 600, wait=False)
    first = peer.say(ask)
    time.sleep(0.8 * 0.6)
    second = peer.say(ask)
    time.sleep(0.5 * 0.6)

    assert first == second
    assert isinstance(other.say(Acquire("x", "other", "", 600, wait=False)), Busy)
    assert peer.say(Release("x", "token")) is not None


@pytest.mark.acceptance("C-7")
def test_a_lapsed_lease_is_never_brought_back_by_a_renewal(engine):
    """It may have been somebody else's meanwhile; it is acquired again, under a new fence."""
    peer = engine.peer()
    granted = peer.say(Acquire("x", "token", "", 200, wait=False))
    assert peer.say(Renew("x", "token", 200)) == Renewed()
    time.sleep(0.25)

    assert peer.say(Renew("x", "token", 200)) == NotHeld("expired")

    assert peer.say(Show("x")).holder is None
    again = peer.say(Acquire("x", "another", "", 200, wait=False))
    assert isinstance(again, Granted)
    assert again.fence > granted.fence


@pytest.mark.acceptance("C-7")
@together
def test_a_lost_lease_stays_lost_when_the_engine_is_back(face):
    """Nobody took it, and yet it is not ours: in between it could have been anybody's."""
    holder = face.connect()
    wire = face.wire(holder)
    wire.fail(Renew)
    lease = holder.lock("x", ttl=0.3).acquire()
    assert lease.lost.wait(5)

    wire.heal()
    time.sleep(0.4)

    assert lease.lost
    assert lease.remaining() == 0
    assert holder.show("x").holder is None
    with pytest.raises(LeaseLost):
        lease.release()


@together
def test_the_ttl_of_a_dead_holder_is_the_bound_for_its_successor(face):
    """A holder that never speaks again is replaced when its ttl ends: not before, and not long after."""
    client, peer = face.connect(), face.peer()
    sent = time.monotonic()
    peer.say(Acquire("x", "dead", "", 500, wait=False))
    answered = time.monotonic()

    with client.lock("x", timeout=5):
        entered = time.monotonic()

    assert entered - sent > 0.499
    assert entered - answered < 0.5 + 0.5


# The same with a clock that is moved by hand: exact, and at once.


@pytest.mark.acceptance("C-14")
def test_trust_ends_by_the_margin_before_the_lease_does(timed):
    """At the trusted deadline the holder is told; only after the margin does the engine give the lease away."""
    events = []
    holder, other = timed.connect(observer=events.append), timed.connect()
    wire = timed.wire(holder)
    wire.fail(Renew)
    lease = holder.lock("x", ttl=10).acquire()
    waiting = timed.start(lambda: other.lock("x").acquire())
    until_waiters(other, "x", 1)
    assert lease.remaining() == 9.5

    timed.clock.advance(9.499)
    lease.check()
    assert not lease.lost
    timed.clock.advance(0.001)
    eventually(lambda: "lost" in [event.kind for event in events])
    time.sleep(0.05)
    assert not waiting.done()
    timed.clock.advance(0.499)
    time.sleep(0.05)
    assert not waiting.done()
    timed.clock.advance(0.001)

    waiting.result().release()


@pytest.mark.acceptance("C-14")
def test_trust_is_counted_from_before_the_command_was_sent(timed):
    """Nobody knows when the engine granted, only that it was not before it was asked: a slow answer is paid for."""
    client = timed.connect()
    transport, keeper_transport = client._client.transport, client._client.keeper._transport
    apply, apply_all = transport.apply, keeper_transport.apply_all
    renewed = threading.Event()

    async def slow_apply(command, until_ns=None):
        answer = await apply(command, until_ns)
        timed.clock.advance(4 if isinstance(command, Acquire) else 0)
        return answer

    async def slow_apply_all(commands, until_ns=None):
        answers = await apply_all(commands, until_ns)
        timed.clock.advance(3)
        renewed.set()
        return answers

    transport.apply, keeper_transport.apply_all = slow_apply, slow_apply_all
    with client.lock("x", ttl=30) as lease:
        assert lease.remaining() == 28.5 - 4
        keeper_transport.apply_all = slow_apply_all
        timed.clock.advance(7)
        assert renewed.wait(5)
        assert eventually(lambda: lease.remaining() == 28.5 - 3)
        keeper_transport.apply_all = apply_all


@pytest.mark.acceptance("A0-13")
def test_the_shortest_ttl_is_renewed_ten_times_a_second_at_most(timed):
    """A third of 0.2 s would be more often; the floor holds, and the lease stands."""
    client = timed.connect()
    wire, keeper = timed.wire(client), client._client.keeper
    with client.lock("x", ttl=0.2) as lease:
        for _ in range(60):
            timed.clock.advance(0.01)
            eventually(lambda: timed.clock.now_ns() < keeper.wake_ns < NEVER_NS, what="a keeper that sleeps")
        lease.check()

    moments = wire.moments(Renew)
    assert 5 <= len(moments) <= 6
    assert min(after - before for before, after in pairwise(moments)) >= 0.0999


@pytest.mark.acceptance("A0-7")
def test_a_lease_is_kept_for_days(timed):
    """Renewal after renewal, under the same fence."""
    events = []
    client = timed.connect(observer=events.append)
    with client.lock("x", ttl=3600) as lease:
        for count in range(1, 100):
            timed.clock.advance(1200)
            eventually(lambda count=count: len([e for e in events if e.kind == "renewed"]) >= count)
        lease.check()

        assert client.show("x").fence == lease.fence
        assert client.show("x").seconds == 99 * 1200
    assert {event.kind for event in events} == {"granted", "renewed", "released"}


@pytest.mark.acceptance("A0-12")
def test_a_process_that_slept_through_its_ttl_has_lost_its_lease(timed):
    """A machine that was suspended finds out at once, not after its next renewal."""
    client = timed.connect()
    lease = client.lock("x", ttl=30).acquire()

    timed.clock.advance(3600)

    with pytest.raises(LeaseLost) as loss:
        lease.check()
    assert loss.value.reason == "expired"
    assert lease.lost.reason == "expired"


@pytest.mark.acceptance("C-14")
@pytest.mark.parametrize("set_by_s", [-30, -86_400, 86_400])
def test_neither_fence_nor_expiry_depends_on_the_calendar(timed, set_by_s):
    """People and time servers set the calendar: fences still grow, leases neither end nor last longer."""
    client, peer = timed.connect(), timed.peer()
    fences = [peer.say(Acquire("x", "first", "", 10_000, wait=False)).fence]

    timed.clock.set_wall(timed.clock.wall_us() + set_by_s * 1_000_000)
    assert client.lock("x").try_acquire() is None
    timed.clock.advance(9.999)
    assert client.lock("x").try_acquire() is None
    timed.clock.advance(0.001)
    for _ in range(3):
        with client.lock("x", timeout=0) as lease:
            fences.append(lease.fence)

    assert fences == sorted(set(fences))


def test_a_name_is_forgotten_after_its_memory_and_its_fences_still_grow(timed):
    """Nothing stays for ever; the clock carries the fences on."""
    client = timed.connect(fence_memory=5)
    with client.lock("x") as lease:
        first = lease.fence
    timed.clock.advance(4)
    assert client.show("x").fence == first
    timed.clock.advance(60)
    client.show("y")

    assert client.show("x").fence == 0
    with client.lock("x") as lease:
        assert lease.fence > first


def test_a_keeper_about_to_end_takes_a_new_lease_on(timed):
    """It ends when it has long had nothing to do; a lease that comes at that very moment is still renewed."""
    events = []
    client = timed.connect(observer=events.append)
    keeper = client._client.keeper
    with client.lock("x"):
        eventually(lambda: keeper.wake_ns < NEVER_NS, what="a keeper that has gone to sleep")
    there, go, look = threading.Event(), threading.Event(), keeper._next_ns

    def slow_look(now_ns):
        found = look(now_ns)
        there.set()
        go.wait(5)
        return found

    keeper._next_ns = slow_look
    timed.clock.advance(11)
    assert there.wait(5)
    acquiring = timed.start(lambda: client.lock("x", ttl=9).acquire())
    time.sleep(0.1)
    keeper._next_ns = look
    go.set()
    lease = acquiring.result()
    time.sleep(0.05)
    timed.clock.advance(3)

    eventually(lambda: ("renewed", "x") in [(event.kind, event.name) for event in events])
    lease.release()


@together
def test_leases_that_come_while_others_are_renewed_leave_the_keeper_alone(face):
    """It will look again in time. Woken by each of thousands, it would go round and round while all wait for it."""
    client = face.connect()
    keeper, wire, rung = client._client.keeper, face.wire(client), []
    there, go = wire.hold(Renew)
    first = client.lock("first", ttl=3).acquire(timeout=5)
    assert there.wait(10)
    keeper.stir = lambda: rung.append(True)

    later = [client.lock(f"later/{number}", ttl=30).acquire(timeout=5) for number in range(20)]
    assert rung == []
    soon = client.lock("soon", ttl=3).acquire(timeout=5)
    assert rung == [True]

    del keeper.stir
    keeper.wake()
    go.set()
    for lease in (*later, soon):
        lease.release()
    with suppress(LeaseLost):  # it was kept waiting
        first.release()
