"""A lost reply never leads to a false answer: every command may be sent twice, and an unused grant is undone."""

import time
from functools import partial

import pytest

from holdfast import LeaseLost, NotAcquired, Unavailable
from holdfast.commands import (
    Acquire,
    Break,
    Busy,
    Done,
    Granted,
    NotHeld,
    Refused,
    Released,
    ReleaseLease,
    Renew,
    Renewed,
    Show,
    Undo,
)
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import passing, together, until_waiters, wakers_of
from holdfast.testing.conformance.faults import Interrupted

pytestmark = pytest.mark.large

LONG = 30_000


def ask(token, *, wait=False, ttl_ms=LONG):
    return Acquire("x", token, "", ttl_ms, wait=wait)


def holder_of(peer):
    """Return the token of the holder of `x`, and the tokens of the waiters."""
    now = peer.say(Show("x"))
    return (now.holder.token if now.holder else None), [waiter.token for waiter in now.waiters]


def test_every_command_is_answered_the_same_when_sent_twice(engine):
    """The second copy gets the answer of the first."""
    peer = engine.peer()

    def twice(command):
        first, second = peer.say(command), peer.say(command)
        if isinstance(first, Busy):  # the remaining time differs
            first = first._replace(remaining_ms=second.remaining_ms)
        assert first == second
        return second

    assert isinstance(twice(ask("a")), Granted)
    assert twice(Renew("x", "a", LONG)) == Renewed()
    waiting = twice(ask("b", wait=True))
    assert isinstance(waiting, Busy)
    assert waiting.position == 0
    assert holder_of(peer) == ("a", ["b"])
    assert twice(ReleaseLease("x", "a")) == Released()
    assert isinstance(twice(ask("b", wait=True)), Granted)
    assert twice(Undo("x", "b")) == Done()
    assert twice(ask("b")) == Refused("undone")
    assert holder_of(peer) == (None, [])


def test_a_second_break_does_not_hit_the_next_holder(engine):
    """The command contains the fence, so a late copy finds nothing."""
    peer = engine.peer()
    fence = peer.say(ask("a")).fence
    command = Break("x", fence, "by hand")
    assert peer.say(command) == Released()
    successor = peer.say(ask("b"))

    assert isinstance(peer.say(command), NotHeld)

    assert successor.fence > fence
    assert holder_of(peer) == ("b", [])
    assert peer.say(Renew("x", "a", LONG)) == NotHeld("broken", "by hand")


def test_a_second_release_does_not_hit_the_next_holder(engine):
    """The engine compares the token of a release; a second copy changes nothing."""
    peer = engine.peer()
    peer.say(ask("a"))
    assert peer.say(ReleaseLease("x", "a")) == Released()
    peer.say(ask("b"))

    assert peer.say(ReleaseLease("x", "a")) == Released()
    assert isinstance(peer.say(ReleaseLease("x", "never")), NotHeld)

    assert holder_of(peer) == ("b", [])


def test_an_acquire_that_its_undo_overtook_is_refused(engine):
    """On two connections the undo may arrive first; the late acquire must find its tombstone."""
    peer = engine.peer()
    assert peer.say(Undo("x", "a")) == Done()

    assert peer.say(ask("a")) == Refused("undone")
    assert peer.say(ask("a", wait=True)) == Refused("undone")

    assert holder_of(peer) == (None, [])


def test_a_token_that_was_released_is_refused(engine):
    """A copy of the acquire that arrives after the release must not take the lease again."""
    peer = engine.peer()
    peer.say(ask("a"))
    peer.say(ReleaseLease("x", "a"))
    assert peer.say(ask("a")) == Refused("released")
    peer.say(ask("b"))
    peer.say(ReleaseLease("x", "b", tombstone=True))
    peer.say(ask("c"))
    peer.say(ReleaseLease("x", "c"))

    assert peer.say(ask("b")) == Refused("released")

    assert holder_of(peer) == (None, [])


def test_the_undo_of_a_waiter_removes_it_from_the_line(engine):
    """No waiter may stand behind an empty place."""
    peer = engine.peer()
    peer.say(ask("a"))
    for token in "bcd":
        peer.say(ask(token, wait=True))

    peer.say(Undo("x", "c"))

    assert holder_of(peer) == ("a", ["b", "d"])


def test_the_undo_of_an_offer_passes_it_on(engine):
    """The waiter with the offer has given up: the next one gets the offer in the same step."""
    peer = engine.peer()
    peer.say(ask("a"))
    peer.say(ask("b", wait=True))
    peer.say(ask("c", wait=True))
    peer.say(ReleaseLease("x", "a"))
    assert holder_of(peer) == ("b", ["c"])
    offered = peer.say(Show("x"))
    assert offered.offered

    peer.say(Undo("x", "b"))

    assert holder_of(peer) == ("c", [])
    assert peer.say(Show("x")).fence > offered.fence
    assert isinstance(peer.say(ask("c", wait=True)), Granted)


def test_the_undo_of_a_lease_frees_it(engine):
    """A grant never reached its caller, so the undo gives the lease to the first waiter."""
    peer = engine.peer()
    peer.say(ask("a"))
    peer.say(ask("b", wait=True))

    peer.say(Undo("x", "a"))

    assert holder_of(peer) == ("b", [])
    assert peer.say(Renew("x", "a", LONG)) == NotHeld("undone")


@pytest.mark.acceptance("A0-15")
@pytest.mark.parametrize("timeout", [0, 5, None])
@pytest.mark.parametrize("reached", [True, False])
def test_an_acquire_whose_reply_was_lost_recognises_its_token(face, timeout, reached):
    """Whether the first copy was applied or not, there is one grant, and no client waits for itself."""
    client, other = face.connect(), face.connect()
    wire = face.wire(client)
    wire.lose_reply(Acquire, times=1, reached=reached)

    with client.lock("x", timeout=timeout) as lease:
        lease.check()
        assert other.show("x").fence == lease.fence
        assert other.lock("x").try_acquire() is None

    first, second = wire.commands(Acquire)
    assert first.token == second.token == lease.token
    assert other.show("x").holder is None
    assert other.show("x").fence == lease.fence


@pytest.mark.acceptance("A0-15")
@together
def test_a_waiter_whose_answer_was_lost_keeps_its_place(face):
    """The waiter stands in the line once, and gets its turn."""
    holder, other = face.connect(), face.connect(label="waits")
    lease = holder.lock("x").acquire()
    face.wire(other).lose_reply(Acquire, times=1)
    waiting = face.start(lambda: other.lock("x", timeout=10).acquire())
    until_waiters(holder, "x", 1)
    time.sleep(0.2)
    assert len(holder.show("x").waiters) == 1

    lease.release()

    waiting.result().release()


@together
def test_answers_that_never_come_end_in_unavailable_and_leave_nothing(face):
    """The timeout ends the call even if every answer is lost; a grant meanwhile is undone."""
    client, other = face.connect(), face.connect()
    wire = face.wire(client)
    wire.lose_reply(Acquire)
    began = time.monotonic()

    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=0)

    assert time.monotonic() - began < 3.5
    assert trouble.value.retryable
    eventually(lambda: other.show("x").holder is None)
    assert wire.commands(Undo, by="keeper") != []
    with other.lock("x", timeout=0):
        pass


@pytest.mark.acceptance("A0-14")
def test_a_release_whose_answer_was_lost_is_a_release(face):
    """The release was applied once, so it raises no error."""
    events = []
    client, other = face.connect(observer=events.append), face.connect()
    wire = face.wire(client)
    wire.lose_reply(ReleaseLease, times=1)

    with client.lock("x"):
        pass

    assert other.show("x").holder is None
    assert len(wire.commands(ReleaseLease)) == 2
    assert [event.kind for event in events] == ["granted", "release_delayed", "released"]


@pytest.mark.acceptance("A0-14")
def test_a_release_whose_answer_was_lost_leaves_the_next_holder_alone(face):
    """Another holder came and left between the two copies, and it is still a release."""
    client, peer = face.connect(), face.peer()
    wire = face.wire(client)
    wire.lose_reply(ReleaseLease, times=1)
    lease = client.lock("x").acquire()
    peer.say(ask("next", wait=True))
    releasing = face.start(lease.release)
    eventually(lambda: isinstance(peer.say(ask("next", wait=True)), Granted))

    releasing.result()

    assert holder_of(peer) == ("next", [])
    peer.say(ReleaseLease("x", "next"))


@pytest.mark.acceptance("A0-14")
@together
def test_a_release_that_cannot_be_sent_returns_the_result_and_is_finished_later(face):
    """The work succeeded; an unsent release is a warning, and the keeper finishes it."""
    events = []
    client, other = face.connect(observer=events.append), face.connect()
    wire = face.wire(client)
    began = time.monotonic()

    def work():
        wire.fail(ReleaseLease)
        return "result"

    assert client.lock("x", ttl=30)(work)() == "result"

    assert time.monotonic() - began < 3
    assert "release_delayed" in [event.kind for event in events]
    assert "lost" not in [event.kind for event in events]
    assert other.lock("x").try_acquire() is None
    wire.heal()
    with other.lock("x", timeout=2):
        pass
    eventually(lambda: [event.kind for event in events][-1] == "released")


def test_a_release_of_a_long_held_lease_is_finished_for_as_long_as_the_engine_holds_it(timed):
    """Renewals have moved the end of the lease: the keeper tries until the engine would expire it."""
    client, other = timed.connect(), timed.connect()
    wire = timed.wire(client)
    lease = client.lock("x", ttl=300).acquire()
    for _ in range(6):
        timed.clock.advance(90)
        eventually(lambda: lease.remaining() > 250, what="a renewal")

    wire.fail(ReleaseLease)
    with passing(timed.clock):
        lease.release()
        eventually(lambda: (tried := wire.moments(ReleaseLease))[-1] > tried[0] + 6, what="tries for six seconds")
    assert other.lock("x").try_acquire() is None
    wire.heal()
    with passing(timed.clock):
        eventually(lambda: other.show("x").holder is None, what="the release")


def test_the_release_of_a_broken_lease_is_no_release(face):
    """Sent twice or not, a broken lease raises `LeaseLost`."""
    client, other = face.connect(), face.connect()
    lease = client.lock("x").acquire()
    face.wire(client).fail(ReleaseLease, times=1)
    other.break_lease("x", "by hand")

    with pytest.raises(LeaseLost) as loss:
        lease.release()

    assert loss.value.reason == "broken"


def test_a_second_release_does_nothing(face):
    """The second release sends nothing."""
    client = face.connect()
    wire = face.wire(client)
    lease = client.lock("x").acquire()
    lease.release()
    with client.lock("x", timeout=0) as other:
        lease.release()
        assert client.show("x").fence == other.fence

    assert len(wire.commands(ReleaseLease)) == 2


def test_an_acquire_that_is_interrupted_leaves_nothing_behind(face):
    """A waiter leaves the line, whatever ends the wait."""
    holder, other = face.connect(), face.connect()
    lease = holder.lock("x").acquire()
    wire = face.wire(other)
    waiting = face.start(lambda: other.lock("x").acquire())
    until_waiters(holder, "x", 1)

    wire.interrupt()

    assert isinstance(waiting.error(), Interrupted)
    until_waiters(holder, "x", 0)
    lease.release()
    eventually(lambda: holder.show("x").holder is None)
    eventually(lambda: wakers_of(other) == {})


def test_a_grant_that_came_too_late_is_requested_again(timed):
    """A grant that arrives after its trusted deadline does not reach the caller, and is no loss."""
    events = []
    client = timed.connect(observer=events.append)
    apply = client._client.transport.apply
    late = [20, 0]
    a_while = partial(time.sleep, 0.05)

    async def slowly(command, until_ns=None):
        answer = await apply(command, until_ns)
        if isinstance(command, Acquire) and command.name == "x":
            timed.clock.advance(late.pop(0))
            a_while()  # the jump wakes the keeper, which could make a mistake now
        return answer

    with client.lock("other", ttl=100):
        client._client.transport.apply = slowly
        with client.lock("x", ttl=10, timeout=60) as lease:
            assert lease.remaining() == 9.5
            timed.clock.advance(3.4)
            eventually(lambda: ("renewed", "x") in [(event.kind, event.name) for event in events])
            lease.check()

    assert late == []
    assert "lost" not in [event.kind for event in events]


def test_a_refused_waiter_that_was_sent_twice_leaves_a_tombstone(face):
    """A copy of its acquire may still be on its way, and must find a tombstone."""
    holder, other, peer = face.connect(), face.connect(), face.peer()
    wire = face.wire(other)
    wire.lose_reply(Acquire, times=1)
    with holder.lock("x"):
        with pytest.raises(NotAcquired):
            other.lock("x").acquire(timeout=0)
        token = wire.commands(Acquire)[0].token
        eventually(lambda: wire.commands(Undo))
        eventually(lambda: peer.say(ask(token)) == Refused("undone"))
