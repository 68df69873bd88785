"""Waiting: first in, first out, without polling, and without delay by dead waiters.

These laws bind engines that declare the capability `fifo`.
"""

import time

import pytest

from holdfast import NotAcquired
from holdfast.commands import Acquire, Busy, Granted, ReleaseLease, Show, WaiterHeartbeat
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together, until_idle, until_waiters, waiting_labels, wakers_of
from holdfast.testing.conformance.faults import Interrupted

pytestmark = [pytest.mark.large, pytest.mark.capability("fifo")]

LONG = 30_000
# The delay that a busy machine may add to a promised bound.
MARGIN_S = 1.5


def ask(token, *, wait=True, ttl_ms=LONG):
    return Acquire("x", token, "", ttl_ms, wait=wait)


def line_up(face, watcher, clients, order):
    """Let waiters join the line one after the other; each records its turn and ends it."""

    def wait(client, label):
        with client.lock("x", ttl=10, timeout=20) as lease:
            order.append((label, lease.fence))

    running = []
    for number, client in enumerate(clients):
        running.append(face.start(wait, client, number))
        until_waiters(watcher, "x", number + 1)
    return running


def test_waiters_are_served_in_the_order_in_which_they_came(face):
    """Several clients are served first in, first out, and the fences show the same order."""
    holder, *others = [face.connect() for _ in range(4)]
    lease = holder.lock("x").acquire()
    order = []
    running = line_up(face, holder, [others[number % 3] for number in range(10)], order)

    lease.release()
    for each in running:
        each.result()

    assert [label for label, _ in order] == list(range(10))
    assert [fence for _, fence in order] == sorted({fence for _, fence in order})


@together
def test_a_newcomer_never_overtakes_the_waiting_line(face):
    """The first waiter gets the lease, at a release and at an expiry."""
    client, peer = face.connect(), face.peer()
    peer.say(ask("dies", ttl_ms=250))
    assert isinstance(peer.say(ask("first")), Busy)
    time.sleep(0.3)

    assert client.lock("x").try_acquire() is None

    assert isinstance(peer.say(ask("first")), Granted)
    peer.say(ask("second"))
    peer.say(ReleaseLease("x", "first"))
    with pytest.raises(NotAcquired):
        client.lock("x").acquire(timeout=0)
    assert isinstance(peer.say(ask("second")), Granted)
    peer.say(ReleaseLease("x", "second"))
    client.lock("x").try_acquire().release()


@together
def test_a_waiter_that_gave_up_is_not_in_the_way(face):
    """A waiter in the middle leaves, and those behind it move up."""
    holder, *others = [face.connect(label=label) for label in ("holder", "a", "b", "c")]
    lease = holder.lock("x").acquire()
    patience = [20, 3, 20]  # in the middle: long enough for the next waiter to join
    running = []
    for number, (client, timeout) in enumerate(zip(others, patience, strict=True)):
        running.append(face.start(lambda client=client, timeout=timeout: client.lock("x").acquire(timeout=timeout)))
        until_waiters(holder, "x", number + 1)

    assert isinstance(running[1].error(), NotAcquired)
    assert waiting_labels(holder, "x") == ["a", "c"]
    lease.release()
    running[0].result().release()
    running[2].result().release()

    assert holder.show("x").waiters == ()
    assert [wakers_of(client) for client in others] == [{}, {}, {}]


def test_a_waiter_that_is_interrupted_is_not_in_the_way(face):
    """A cancelled or interrupted waiter leaves the line, and those behind it move up."""
    holder, *others = [face.connect(label=label) for label in ("holder", "a", "b", "c")]
    lease = holder.lock("x").acquire()
    wire = face.wire(others[1])
    running = []
    for number, client in enumerate(others):
        running.append(face.start(lambda client=client: client.lock("x").acquire()))
        until_waiters(holder, "x", number + 1)

    wire.interrupt()

    assert isinstance(running[1].error(), Interrupted)
    eventually(lambda: waiting_labels(holder, "x") == ["a", "c"], timeout=2)
    lease.release()
    running[0].result().release()
    running[2].result().release()


@together
def test_an_unconfirmed_offer_passes_on(face):
    """A waiter that misses its wake-up delays the next one until its offer expires: under two seconds."""
    holder, client, peer = face.connect(), face.connect(label="next"), face.peer()
    lease = holder.lock("x").acquire()
    peer.say(ask("silent"))
    waiting = face.start(lambda: client.lock("x", timeout=20).acquire())
    until_waiters(holder, "x", 2)
    lease.release()
    released = time.monotonic()
    assert peer.say(Show("x")).holder.token == "silent"

    waiting.result().release()

    assert time.monotonic() - released < 5 / 3 + MARGIN_S


def test_an_offer_lasts_no_longer_than_the_ttl(engine):
    """A short ttl also limits the offer."""
    peer = engine.peer()
    peer.say(ask("a"))
    peer.say(ask("b", ttl_ms=200))
    peer.say(ask("c"))
    peer.say(ReleaseLease("x", "a"))
    offered = peer.say(Show("x"))
    time.sleep(0.25)

    assert (offered.holder.token, offered.offered) == ("b", True)
    assert offered.holder.remaining_ms <= 200
    assert isinstance(peer.say(ask("c")), Granted)
    # It may only have missed the wake-up: a live waiter goes to the end of the line.
    assert [waiter.token for waiter in peer.say(Show("x")).waiters] == ["b"]


@pytest.mark.acceptance("G-4", "G-5")
@together
def test_fifty_dead_waiters_cost_one_heartbeat_and_two_seconds(face):
    """The waiters of a dead client leave together; the live one behind them does not wait for each in turn."""
    holder, live, dead = face.connect(), face.connect(), face.peer()
    lease = holder.lock("x").acquire()
    for number in range(50):
        assert dead.say(ask(f"dead {number}")).position == number
    died = time.monotonic()
    waiting = face.start(lambda: live.lock("x", timeout=30).acquire())
    until_waiters(holder, "x", 51)
    lease.release()

    waiting.result(20).release()

    assert time.monotonic() - died < 5 + 2


@pytest.mark.acceptance("G-4", "G-5")
def test_fifty_dead_waiters_leave_together_when_their_heartbeat_stops(timed):
    """The same with a test clock, through both faces: within five seconds and two checks."""
    holder, live, dead = timed.connect(), timed.connect(), timed.peer()
    lease = holder.lock("x").acquire()
    for number in range(50):
        dead.say(ask(f"dead {number}"))
    died_ns = timed.clock.now_ns()
    waiting = timed.start(lambda: live.lock("x", timeout=30).acquire())
    until_waiters(holder, "x", 51)
    lease.release()

    while not waiting.done():
        timed.clock.advance(0.1)
        time.sleep(0.005)

    assert (timed.clock.now_ns() - died_ns) / 1e9 <= 5 + 2
    waiting.result().release()


def test_waiters_of_a_live_client_stay_in_line(timed):
    """All waiters of one client share one heartbeat, which its keeper sends while they wait."""
    holder, waiter, peer = timed.connect(), timed.connect(), timed.peer()
    lease = holder.lock("x", ttl=600).acquire()
    wire = timed.wire(waiter)
    running = [timed.start(lambda: waiter.lock("x").acquire()) for _ in range(3)]
    until_waiters(holder, "x", 3)
    peer.say(ask("dead"))

    for _ in range(20):
        marks = len(wire.commands(WaiterHeartbeat))
        timed.clock.advance(2)
        eventually(lambda marks=marks: len(wire.commands(WaiterHeartbeat)) > marks)

    assert len(holder.show("x").waiters) == 3
    assert {command.name for command in wire.commands(WaiterHeartbeat)} == {"x"}
    lease.release()
    while running:
        done = eventually(lambda: next((each for each in running if each.done()), None))
        running.remove(done)
        done.result().release()


@pytest.mark.acceptance("G-5")
@together
def test_waiting_is_not_polling(face):
    """A waiter sends one acquire (one more when its listener starts) and heartbeats, and a wake-up ends its wait.

    Heartbeats are half a second apart near the front of the line, at least.
    """
    holder, other = face.connect(), face.connect()
    lease = holder.lock("x").acquire()
    wire = face.wire(other)
    waiting = face.start(lambda: (other.lock("x").acquire(), time.monotonic()))
    until_waiters(holder, "x", 1)
    began = time.monotonic()
    time.sleep(2)
    asked, marked = wire.commands(Acquire), wire.commands(WaiterHeartbeat)

    released = time.monotonic()
    lease.release()
    successor, woken = waiting.result()
    successor.release()

    assert len(asked) <= 2
    assert len(marked) <= (time.monotonic() - began) / 0.5 + 1
    assert len(wire.commands()) <= len(asked) + len(marked) + 3
    assert woken - released < 0.5


@together
def test_a_release_wakes_one_waiter_only(face):
    """Only the waiter whose turn it is sends a command; the others sleep."""
    holder, *others = [face.connect() for _ in range(5)]
    lease = holder.lock("x").acquire()
    wires = [face.wire(client) for client in others]
    running = []
    for number, client in enumerate(others):
        running.append(face.start(lambda client=client: client.lock("x").acquire()))
        until_waiters(holder, "x", number + 1)
    for wire in wires:
        until_idle(wire)
    before = [len(wire.commands(Acquire)) for wire in wires]

    lease.release()
    first = running[0].result()
    time.sleep(0.1)

    after = [len(wire.commands(Acquire)) for wire in wires]
    assert after[1:] == before[1:]
    assert after[0] <= before[0] + 1  # none, if the waiter queued its confirmation before it slept
    first.release()
    for each in running[1:]:
        each.result().release()


@pytest.mark.acceptance("G-5")
@together
def test_recovery_needs_no_wake_up(face):
    """A waiter without wake-ups still gets a dead holder's lease when its ttl ends."""
    client, peer = face.connect(), face.peer()
    peer.say(ask("dead", ttl_ms=600))
    face.wire(client).wakeups_lost = True
    began = time.monotonic()

    with client.lock("x", timeout=10):
        took = time.monotonic() - began

    assert 0.4 < took < 0.6 + 0.5


@pytest.mark.acceptance("G-5")
@together
def test_a_missed_offer_costs_time_and_nothing_else(face):
    """If the wake-up of a release is lost, the waiter tries again when the lease would have ended."""
    holder, client = face.connect(), face.connect()
    lease = holder.lock("x", ttl=2).acquire()
    face.wire(client).wakeups_lost = True
    waiting = face.start(lambda: client.lock("x", timeout=30).acquire())
    until_waiters(holder, "x", 1, timeout=10)
    released = time.monotonic()
    lease.release()

    waiting.result().release()

    assert time.monotonic() - released < 2 + 5, "and not when patience ends, or a waiter far behind would look"
