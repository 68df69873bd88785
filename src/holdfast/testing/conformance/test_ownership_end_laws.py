"""The end of owners and assignments: every owner that has to know learns of it, and nothing is left behind."""

import os
import time

import pytest

import holdfast
from holdfast import Assigned, AssignmentLost, Closed, LeaseLost, OwnerStopped, Unavailable
from holdfast.commands.queue import RELEASE, ConsumerHeartbeat, Leave, MessageOutcome, RecordOutcomes
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together
from holdfast.testing.conformance.faults import Fault, Interrupted
from holdfast.testing.conformance.ownership_steps import TTL_S, added, open_sessions, sessions

pytestmark = pytest.mark.capability("queues")


@together
def test_an_owner_that_was_declared_dead_learns_of_all_its_losses(face):
    """It starts a new session by itself; outcomes for the lost keys are refused, because others have them."""
    client = face.connect()
    queue, other = sessions(client), sessions(face.connect())
    wire = face.wire(client)
    with queue.owner("slow") as owner:
        open_sessions(queue, 3)
        assignments = added(owner, 3)
        with other.owner("successor") as successor:
            wire.fail(ConsumerHeartbeat)
            taken = {work.key: work for work in added(successor, 3)}
            wire.heal()
            lost = [owner.next(20) for _ in range(3)]
            assert all(isinstance(event, AssignmentLost) for event in lost)
            assert {event.assignment.key for event in lost} == {work.key for work in assignments}
            for work in assignments:
                assert work.lost
                assert work.remaining() == 0
                assert taken[work.key].fence > work.fence
                with pytest.raises(LeaseLost):
                    work.check()
                with pytest.raises(LeaseLost):
                    work.ack()
            assert owner.owned == 0
            for work in taken.values():
                work.check()
                work.release()
            back = added(owner, 1) if owner.owned == 0 else []
            assert all(work.fence > taken[work.key].fence for work in back)


@pytest.mark.finding("L8")
@together
def test_an_owner_that_is_cut_off_gets_its_losses_at_the_trusted_deadline(face):
    """A program that only reads events must stop its work then. If no other owner came, it gets the keys again."""
    client = face.connect()
    queue = sessions(client)
    wire = face.wire(client)
    with queue.owner("cut off") as owner:
        open_sessions(queue, 2)
        assignments = added(owner, 2)
        fences = {work.fence for work in assignments}
        wire.fail()  # every command: the heartbeat and the fetch
        cut_off = time.monotonic()
        lost = [owner.next(20) for _ in assignments]
        took = time.monotonic() - cut_off

        assert [type(event) for event in lost] == [AssignmentLost] * 2
        assert {event.assignment.fence for event in lost} == fences
        assert all(work.lost for work in assignments)
        assert took < TTL_S + 0.5
        assert owner.next(0.3) is None  # each loss is one event

        wire.heal()
        back = [owner.next(20) for _ in assignments]
        assert [type(event) for event in back] == [Assigned] * 2
        assert {event.assignment.fence for event in back} == fences
        for work in assignments:
            work.ack()
        assert owner.next(0) is None
    assert queue.stats().counts == {"published": 2, "received": 2, "acked": 2}


@pytest.mark.finding("T1")
@together
def test_no_outcome_of_an_assignment_succeeds_after_another_owner_has_acked_it(face):
    """An owner is cut off, and another takes over: every method says so, although the engine is silent."""
    client = face.connect()
    queue, other = sessions(client), sessions(face.connect())
    wire = face.wire(client)
    with queue.owner("cut off") as owner:
        open_sessions(queue, 3)
        assignments = added(owner, 3)
        wire.fail()
        with other.owner("successor") as successor:
            for work in added(successor, 3):
                work.ack()
        ways = (lambda work: work.ack(), lambda work: work.release(), lambda work: work.retry())
        ends = [face.start(way, work) for way, work in zip(ways, assignments, strict=True)]
        for end, work in zip(ends, assignments, strict=True):
            assert isinstance(end.error(), LeaseLost)
            assert work.lost
            assert not work.finished
        wire.heal()
    assert other.stats().counts["acked"] == 3


@pytest.mark.finding("T1")
@together
def test_an_ack_of_an_assignment_that_was_not_confirmed_is_unknown_until_it_is(face):
    """The session can still be trusted. The keeper keeps sending, and reports the end of the assignment once."""
    events = []
    client = face.connect(observer=events.append)
    queue = sessions(client, ttl=30)
    wire = face.wire(client)
    with queue.owner() as owner:
        open_sessions(queue, 1)
        (work,) = added(owner, 1)
        wire.fail(RecordOutcomes)
        with pytest.raises(Unavailable) as caught:
            work.ack()
        assert (caught.value.outcome, caught.value.retryable, work.finished) == ("unknown", False, False)
        assert [each for each in events if each.kind == "unassigned"] == []
        wire.heal()
        eventually(lambda: work.finished, what="the answer to the keeper")
        eventually(lambda: [each.kind for each in events].count("unassigned") == 1, what="one end")
    assert [each.kind for each in events].count("unassigned") == 1
    assert queue.stats().counts["acked"] == 1


def test_a_key_that_the_engine_forgot_is_lost_although_its_owner_lives(face):
    """A failover may undo a receive: the owner that still believes in it gets an event, and stops."""
    queue = sessions(face.connect())
    peer = face.peer()
    with queue.owner() as owner:
        open_sessions(queue, 2)
        first, second = added(owner, 2)
        token, entry = first.token, first._held.entry
        assert peer.say(RecordOutcomes("sessions", token, (MessageOutcome(entry, RELEASE, 60_000),))).lost == ()
        owner._core.consumers[0].answer_may_be_lost = True
        event = owner.next(20)
        assert isinstance(event, AssignmentLost)
        assert event.assignment.key == first.key
        with pytest.raises(LeaseLost):
            first.check()
        second.check()
        assert owner.owned == 1


def test_an_interrupt_during_a_dead_lettering_leaves_no_key_unseen(face):
    """The keys that came with it become events later.

    Otherwise the owner would hold them for hours without knowing it.
    """
    client = face.connect()
    queue = sessions(client)
    client.queue("sessions", codec="bytes").publish(b"{no json", key="bad")
    open_sessions(queue, 2)
    wire = face.wire(client)
    with queue.owner() as owner:
        wire._faults.append(Fault(RecordOutcomes, 1, applied=False, hangs=False, error=Interrupted()))
        with pytest.raises(Interrupted):
            owner.next(5)
        assert sorted(work.key for work in added(owner, 2)) == ["chat-0", "chat-1"]
        assert owner.next(0) is None
        assert owner.owned == 2
    assert [dead_letter.reason for dead_letter in queue.dlq.list()] == ["unreadable"]
    assert queue.check()


def test_a_closed_client_ends_a_full_owner(face):
    """It does not wait for messages, and learns of the end all the same."""
    client = face.connect()
    queue = sessions(client)
    open_sessions(queue, 2)
    with queue.owner(most=1) as owner:
        added(owner, 1)
        waiting = face.start(lambda: owner.next(20))
        time.sleep(0.2)
        closing = face.start(lambda: client.close(timeout=10))
        began = time.monotonic()
        assert waiting.result() == OwnerStopped("closed")
        assert time.monotonic() - began < 5
    closing.result()


def test_an_owner_of_many_keys_leaves_in_short_steps(face):
    """A server must not stop serving others while one of its clients leaves."""
    client = face.connect()
    queue = sessions(client)
    queue.publish_many(range(300), key=str)
    with queue.owner() as owner:
        assignments = added(owner, 300)
        assignments[0].ack()
        wire = face.wire(client)
    assert len(wire.commands(Leave)) == 3  # none has more than 128
    assert queue.stats().ready == 299
    assert queue.stats().consumers == 0
    assert queue.stats().counts["released"] == 299
    assert queue.check()


def test_a_leaving_owner_waits_once_for_an_absent_engine_not_once_per_partition(face):
    """A pod does not take minutes to stop; the keeper gives its keys back when the engine answers again."""
    client = face.connect()
    whole = sessions(client, ttl=30).partitioned(4)
    open_sessions(whole, 8)
    wire = face.wire(client)
    with whole.owner() as owner:
        added(owner, 8)
        wire.fail(Leave)
        began = time.monotonic()
    assert time.monotonic() - began < 6
    wire.heal()
    eventually(lambda: whole.stats().ready == 8, 20, "everything given back")
    assert whole.stats().consumers == 0
    assert whole.check()


def test_a_forked_child_gets_no_event_about_its_parents_keys(tmp_path):
    """Two processes would start the same work; and the parent goes on."""
    with holdfast.connect(f"sqlite://{tmp_path}/x.db") as client:
        queue = sessions(client, ttl=30)
        open_sessions(queue, 2)
        with queue.owner() as owner:
            (first,) = added(owner, 1)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    news = [owner.next(0) for _ in range(3)]
                    code = 2 if any(isinstance(event, Assigned) for event in news) else 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            first.check()
            (second,) = added(owner, 1)
            for work in (first, second):
                work.ack()
    assert {first.key, second.key} == {"chat-0", "chat-1"}


@pytest.mark.acceptance("A1-19")
def test_a_stop_is_reported_once_and_leaves_nothing(face):
    """Before it begins, twice, and after the end: no harm; its keys are ready for others."""
    client = face.connect()
    queue = sessions(client)
    open_sessions(queue, 2)
    owner = queue.owner()
    owner.stop()
    with owner:
        added(owner, 2)
        waiting = face.start(lambda: owner.next(20))
        owner.stop()
        owner.stop()
        assert waiting.result() == OwnerStopped("stopped")
        assert list(owner) == []
        with pytest.raises(RuntimeError, match="after it was stopped"):
            owner.claim("chat-0")
    assert owner.next(0) is None
    assert queue.consumers() == []
    assert queue.stats().ready == 2
    with pytest.raises(RuntimeError, match="inside its `with` block"):
        owner.claim("chat-0")


def test_a_closed_client_ends_its_owner(face):
    """A reader that waits for events learns why there are no more."""
    client = face.connect()
    queue = sessions(client)
    with queue.owner() as owner:
        waiting = face.start(lambda: owner.next(20))
        eventually(lambda: queue.stats().waiting == 1, 5, "an owner that waits")
        closing = face.start(lambda: client.close(timeout=5))
        assert waiting.result() == OwnerStopped("closed")
        with pytest.raises((Closed, RuntimeError)):
            owner.claim("x")
    closing.result()
