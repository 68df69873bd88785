"""The lifetime of a lease: it lasts while it is renewed, and the holder's trust always ends first."""

import threading
import time
from contextlib import suppress
from itertools import pairwise

import pytest

from holdfast import LeaseLost
from holdfast.clock import NEVER_NS
from holdfast.commands import Acquire, Busy, Granted, NotHeld, ReleaseLease, Renew, Renewed, Show
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together, until_waiters


@pytest.mark.acceptance("A0-7", "G-4")
@together
def test_work_of_three_ttls_stays_ours(face):
    """The engine never replaces a live holder, however slow it is."""
    holder, other = face.connect(), face.connect()
    with holder.lock("x", ttl=1) as lease:  # all engines share the machine, and a keeper may start late
        end = time.monotonic() + 3.1
        tries = 0
        while time.monotonic() < end:
            assert other.lock("x").try_acquire() is None
            lease.check()
            assert lease.remaining() > 0
            tries += 1
            time.sleep(0.05)

        assert tries > 10
        assert other.show("x").fence == lease.fence
    assert not lease.lost


@pytest.mark.acceptance("G-4", "C-14")
@together
def test_a_silent_holder_knows_of_its_loss_before_its_successor_enters(face):
    """The holder's trust ends before the lease, so that two holders never trust it at once."""
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
    details = eventually(lambda: [event.detail for event in events if event.kind == "lost"])
    assert [detail.split()[0] for detail in details] == ["expired"]
    assert "as the law demands" in details[0], "the loss contains the reason of the failed renewal"
    with pytest.raises(LeaseLost):
        lease.check()
    successor.check()
    successor.release()


@pytest.mark.acceptance("A0-11")
@together
def test_one_failed_renewal_loses_nothing(face):
    """One failed renewal causes a warning and nothing else."""
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
    """The observer, the callback and the end of the block each report the loss once."""
    events, calls = [], []
    holder = face.connect(observer=events.append)
    face.wire(holder).fail(Renew)
    # Long enough for several renewals, also on a busy machine.
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
    """The keeper never waits for an answer beyond the moment at which it must report the loss."""
    holder = face.connect()
    face.wire(holder).fail(Renew, hangs=True)
    sent = time.monotonic()
    lease = holder.lock("x", ttl=0.6).acquire()

    assert lease.lost.wait(5)

    assert time.monotonic() - sent < 0.6 + 0.4
    assert lease.lost.reason == "expired"


@pytest.mark.acceptance("A0-13")
def test_short_work_under_a_long_ttl_sends_no_renewal(face):
    """Work that ends before a renewal is due costs one acquire and one release."""
    client = face.connect()
    wire = face.wire(client)
    for _ in range(2):
        with client.lock("x", ttl=1):
            time.sleep(0.09)

    assert [type(command) for command in wire.commands()] == [Acquire, ReleaseLease, Acquire, ReleaseLease]


@pytest.mark.acceptance("A0-13")
@together
def test_renewals_are_at_least_a_tenth_of_a_second_apart(face):
    """A short ttl must not overload the engine, and the lease still stands.

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


def test_a_resent_acquire_of_the_holder_restarts_the_ttl(engine):
    """The holder counts its trust from the resend, so the engine must count from there too."""
    peer, other = engine.peer(), engine.peer()
    ask = Acquire("x", "token", "", 600, wait=False)
    first = peer.say(ask)
    time.sleep(0.8 * 0.6)
    second = peer.say(ask)
    time.sleep(0.5 * 0.6)

    assert first == second
    assert isinstance(other.say(Acquire("x", "other", "", 600, wait=False)), Busy)
    assert peer.say(ReleaseLease("x", "token")) is not None


@pytest.mark.acceptance("C-7")
def test_a_renewal_never_revives_an_expired_lease(engine):
    """Another holder may have had the lease meanwhile; it must be acquired again, under a new fence."""
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
    """Even if no other client took the lease, it could have: it stays lost."""
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
    """The engine replaces a silent holder when its ttl ends: not before, and not long after."""
    client, peer = face.connect(), face.peer()
    sent = time.monotonic()
    peer.say(Acquire("x", "dead", "", 500, wait=False))
    answered = time.monotonic()

    with client.lock("x", timeout=5):
        entered = time.monotonic()

    assert entered - sent > 0.499
    assert entered - answered < 0.5 + 0.5


# The same with a clock that the test moves: exact and fast.


@pytest.mark.acceptance("C-14")
def test_trust_ends_by_the_margin_before_the_lease_does(timed):
    """The holder learns of the loss at the trusted deadline; the engine grants again only after the margin."""
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
    """The engine granted after the command was sent, so a slow answer shortens the trust."""
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
    """A third of 0.2 s would be more often; the minimum interval holds, and the lease stands."""
    client = timed.connect()
    wire, keeper = timed.wire(client), client._client.keeper
    with client.lock("x", ttl=0.2) as lease:
        eventually(lambda: keeper.wake_ns <= lease.due_ns, what="a keeper that knows the lease")
        for _ in range(60):
            timed.clock.advance(0.01)
            eventually(lambda: timed.clock.now_ns() < keeper.wake_ns < NEVER_NS, what="a keeper that sleeps")
        lease.check()

    moments = wire.moments(Renew)
    assert 5 <= len(moments) <= 6
    assert min(after - before for before, after in pairwise(moments)) >= 0.0999


@pytest.mark.acceptance("A0-7")
def test_a_lease_is_kept_for_days(timed):
    """Renewals continue under the same fence."""
    events = []
    client = timed.connect(observer=events.append)
    keeper = client._client.keeper
    with client.lock("x", ttl=3600) as lease:
        for count in range(1, 100):
            timed.clock.advance(1200)
            eventually(lambda count=count: len([e for e in events if e.kind == "renewed"]) >= count)
            eventually(lambda: timed.clock.now_ns() < keeper.wake_ns < NEVER_NS, what="a keeper that sleeps")
        lease.check()

        assert client.show("x").fence == lease.fence
        assert client.show("x").seconds == 99 * 1200
    assert {event.kind for event in events} == {"granted", "renewed", "released"}


@pytest.mark.acceptance("A0-12")
def test_a_process_that_slept_through_its_ttl_has_lost_its_lease(timed):
    """A process on a suspended machine notices the loss at once, not at its next renewal."""
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
    """A step of the calendar clock neither stops fences from growing nor changes the end of a lease."""
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
    """The engine forgets an unused name, and the clock keeps its fences growing."""
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


def test_a_keeper_about_to_end_accepts_a_new_lease(timed):
    """The keeper ends after a time without work; a lease that comes at that moment is still renewed."""
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
def test_new_leases_do_not_wake_a_busy_keeper(face):
    """The keeper wakes up in time by itself; a wake-up for each of thousands of leases would keep it busy."""
    client = face.connect()
    keeper, wire, woken = client._client.keeper, face.wire(client), []
    there, go = wire.hold(Renew)
    first = client.lock("first", ttl=3).acquire(timeout=5)
    assert there.wait(10)
    keeper.wake = lambda: woken.append(True)

    later = [client.lock(f"later/{number}", ttl=30).acquire(timeout=5) for number in range(20)]
    assert woken == []
    soon = client.lock("soon", ttl=3).acquire(timeout=5)
    assert woken == [True]

    del keeper.wake
    keeper.wake()
    go.set()
    for lease in (*later, soon):
        lease.release()
    with suppress(LeaseLost):  # it had to wait
        first.release()
