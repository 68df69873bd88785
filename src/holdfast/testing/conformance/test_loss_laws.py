"""The loss of a lease: the holder learns of it, the work finishes, and the error is not retryable."""

import time

import pytest

from holdfast import LeaseLost
from holdfast.commands import Acquire, ReleaseLease, Renew
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together, until_waiters


class Unhappy(Exception):
    """An error of the work."""


@pytest.mark.acceptance("A0-8", "C-3", "C-4", "G-2")
@together
def test_a_broken_lease_raises_after_the_work_finished(face):
    """The work runs to its end, once; then `LeaseLost` follows with the reason, and it is not retryable."""
    holder, other = face.connect(), face.connect()
    ran = []
    with pytest.raises(LeaseLost) as loss, holder.lock("x", ttl=0.6) as lease:
        waiting = face.start(lambda: other.lock("x").acquire())
        until_waiters(other, "x", 1)
        other.break_lease("x", "maintenance at noon")
        assert lease.lost.wait(5)
        assert lease.lost.reason == "broken"
        successor = waiting.result()
        ran.append("to its end")

    error = loss.value
    assert ran == ["to its end"]
    assert (error.name, error.fence, error.reason) == ("x", lease.fence, "broken")
    assert error.detail == "maintenance at noon"
    assert "maintenance at noon" in str(error)
    assert not error.retryable
    assert error.__cause__ is None
    successor.check()
    assert other.show("x").fence == successor.fence
    successor.release()


@pytest.mark.acceptance("A0-9", "C-3", "G-2")
def test_a_loss_outweighs_the_error_of_the_work_and_carries_it(face):
    """The work's error alone would invite a retry, and the loss alone would hide the cause."""
    holder, other = face.connect(), face.connect()
    unhappy = Unhappy("out of paper")
    with pytest.raises(LeaseLost) as loss, holder.lock("x", ttl=0.6):
        other.break_lease("x", "by hand")
        raise unhappy

    assert loss.value.__cause__ is unhappy
    assert "out of paper" in str(loss.value)
    assert not loss.value.retryable
    assert other.lock("x").try_acquire().release() is None


def test_the_error_of_the_work_passes_unchanged_and_frees_the_lease(face):
    """A lock adds nothing to an error that has nothing to do with it."""
    client = face.connect()
    unhappy = Unhappy("out of paper")
    with pytest.raises(Unhappy) as raised, client.lock("x"):
        raise unhappy

    assert raised.value is unhappy
    assert raised.value.__cause__ is None
    assert client.show("x").holder is None


@pytest.mark.acceptance("C-3", "G-2")
def test_an_unnoticed_loss_is_reported_at_the_end_of_the_block(face):
    """Between two renewals the holder cannot know of the loss, but its block still raises."""
    holder, other = face.connect(), face.connect()
    with pytest.raises(LeaseLost) as loss, holder.lock("x", ttl=30) as lease:
        other.break_lease("x", "by hand")
        lease.check()

    assert (loss.value.reason, loss.value.detail) == ("broken", "by hand")
    assert lease.lost
    with pytest.raises(LeaseLost):
        lease.check()


@pytest.mark.acceptance("C-3", "G-2")
def test_the_result_of_decorated_work_is_carried_by_the_loss(face):
    """The work is done, so the error carries its result."""
    holder, other = face.connect(), face.connect()
    runs = []

    def work(number):
        runs.append(number)
        other.break_lease("x", "by hand")
        return number + 1

    with pytest.raises(LeaseLost) as loss:
        holder.lock("x", ttl=30)(work)(41)

    assert loss.value.result == 42
    assert runs == [41]


@pytest.mark.acceptance("C-4", "G-2")
def test_decorated_work_runs_once_and_gives_its_result(face):
    """The library never runs the work twice, and passes its result or error on."""
    client = face.connect()
    runs = []

    def work(outcome):
        runs.append(client.show("x").holder is not None)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    decorated = client.lock("x")(work)

    assert decorated("fine") == "fine"
    with pytest.raises(Unhappy):
        decorated(Unhappy())
    assert runs == [True, True]
    assert client.show("x").holder is None


@together
def test_on_loss_is_called_once_with_the_lease(face):
    """It runs once, whether the keeper, a check or the end of the block notices the loss."""
    holder, other = face.connect(), face.connect()
    calls = []
    with (
        pytest.raises(LeaseLost),
        holder.lock("x", ttl=0.6, on_loss=lambda lost: calls.append((lost.name, lost.fence))) as lease,
    ):
        other.break_lease("x", "by hand")
        assert lease.lost.wait(5)
        with pytest.raises(LeaseLost):
            lease.check()
    eventually(lambda: calls)
    with pytest.raises(LeaseLost):
        lease.release()
    time.sleep(0.1)

    assert calls == [("x", lease.fence)]


@together
def test_on_loss_is_not_called_for_a_lease_that_ended_well(face):
    """A release is no loss."""
    client = face.connect()
    calls = []
    with client.lock("x", ttl=0.3, on_loss=calls.append):
        time.sleep(0.35)
    time.sleep(0.1)

    assert calls == []


def test_an_on_loss_that_raises_does_no_harm(face, caplog):
    """The keeper survives an error of the user's callback, and still reports the loss."""
    holder, other = face.connect(), face.connect()

    def on_loss(_lease):
        raise Unhappy("in the callback")

    with holder.lock("y", ttl=0.3) as standing:
        with pytest.raises(LeaseLost), holder.lock("x", ttl=0.3, on_loss=on_loss) as lease:
            other.break_lease("x", "by hand")
            assert lease.lost.wait(5)
        eventually(lambda: "on_loss" in caplog.text)
        time.sleep(0.35)
        standing.check()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_passes_unchanged_with_a_note_of_the_loss(face, interruption):
    """A lock must not stop an interruption; a note mentions the loss."""
    holder, other = face.connect(), face.connect()
    with pytest.raises(interruption) as raised, holder.lock("x", ttl=30):
        other.break_lease("x", "by hand")
        raise interruption

    assert type(raised.value) is interruption
    assert any("by hand" in note for note in raised.value.__notes__)

    with pytest.raises(interruption) as raised, holder.lock("x", ttl=30):
        raise interruption
    assert not hasattr(raised.value, "__notes__")
    assert holder.show("x").holder is None


def test_waiting_for_a_loss_ends_with_the_lease(face):
    """`wait` returns true after a loss, and false after the timeout or a release."""
    client = face.connect()
    lease = client.lock("x", ttl=0.6).acquire()
    assert not lease.lost.wait(0)
    began = time.monotonic()
    assert not lease.lost.wait(0.1)
    assert 0.1 <= time.monotonic() - began < 0.5
    waiting = face.start(lease.lost.wait)
    time.sleep(0.05)

    lease.release()

    assert waiting.result(2) is False
    assert lease.lost.reason == ""
    assert not lease.lost.is_set()


@together
def test_a_lost_lease_is_never_acquired_again_by_itself(face):
    """A lost lease stays lost, even if the name is free and the client is alive."""
    holder, other = face.connect(), face.connect()
    lease = holder.lock("x", ttl=0.4).acquire()
    other.break_lease("x", "by hand")
    assert lease.lost.wait(5)
    time.sleep(0.5)

    assert holder.show("x").holder is None
    assert (lease.lost.is_set(), lease.lost.reason, lease.remaining()) == (True, "broken", 0)


@pytest.mark.acceptance("G-1", "A0-8")
@pytest.mark.parametrize("ending", ["expired", "broken"])
def test_the_release_of_a_lost_lease_never_touches_the_successor(face, ending):
    """The late release of a lost lease changes nothing."""
    holder, other = face.connect(), face.connect()
    wire = face.wire(holder)
    wire.fail(Renew)
    late = holder.lock("x", ttl=0.4).acquire()
    if ending == "broken":
        other.break_lease("x", "by hand")
    next_holder = other.lock("x", timeout=5).acquire()
    wire.heal()

    with pytest.raises(LeaseLost) as loss:
        late.release()
    with pytest.raises(LeaseLost):
        late.release()
    time.sleep(0.1)

    assert loss.value.reason in (ending, "expired")
    assert other.show("x").fence == next_holder.fence
    next_holder.check()
    next_holder.release()


def test_a_holder_past_its_deadline_releases_a_lease_that_may_still_stand(face):
    """Trust ends before the lease does; a holder that leaves in between lets the next one in at once."""
    holder, other = face.connect(), face.connect()
    face.wire(holder).fail(Renew)
    lease = holder.lock("x", ttl=10).acquire()
    lease.deadline_ns = 0  # as if the process had been frozen until now

    with pytest.raises(LeaseLost):
        lease.release()

    with other.lock("x", timeout=2):
        pass


@together
def test_a_renewal_that_crosses_a_release_reports_no_loss(face):
    """A renewal and a release cross: the answer "not yours" is right and no loss."""
    events, calls = [], []
    client = face.connect(observer=events.append)
    there, go = face.wire(client).hold(Renew)
    lease = client.lock("x", ttl=0.6, on_loss=calls.append).acquire()
    assert there.wait(5)
    lease.release()
    go.set()
    with client.lock("x", ttl=0.6):
        time.sleep(0.3)

    assert "lost" not in [event.kind for event in events]
    assert calls == []


def test_a_lease_that_the_engine_lost_is_reported_after_a_resent_acquire(face):
    """Only a resent *release* may find its own work done; a resent acquire proves nothing."""
    client, peer = face.connect(), face.peer()
    face.wire(client).lose_reply(Acquire, times=1)
    lease = client.lock("x", ttl=30).acquire()
    peer.say(ReleaseLease("x", lease.token))  # as if the engine was restored from a backup
    peer.say(Acquire("x", "other", "", 30_000, wait=False))
    peer.say(ReleaseLease("x", "other"))

    with pytest.raises(LeaseLost):
        lease.release()


@together
@pytest.mark.finding("X6")
def test_one_unanswered_renewal_loses_no_lease(face):
    """After an exchange without an answer, the keeper has time for a second one."""
    events = []
    client = face.connect(observer=events.append)
    wire = face.wire(client)
    with client.lock("x", ttl=1.5) as lease:
        for count in range(1, 3):
            wire.fail(Renew, 1, hangs=True)
            eventually(lambda n=count: sum(event.kind == "renewal_failed" for event in events) >= n, 20)
            before = len(events)
            eventually(lambda n=before: any(event.kind.startswith("renewed") for event in events[n:]) or lease.lost, 20)
        assert not lease.lost
