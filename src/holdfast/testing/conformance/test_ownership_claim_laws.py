"""Claims: one owner gets a key without a live holder at once; and whatever a claim leaves behind becomes an event."""

import time

import pytest

import holdfast
from holdfast import Assigned, AssignmentLost, Backoff, NotAcquired, NotFound
from holdfast.commands.queue import ConsumerHeartbeat, Join, MessageOutcome, Receive, RecordOutcomes, TakeOver
from holdfast.core.ownership.consumer import OwnerConsumer
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together
from holdfast.testing.conformance.faults import Fault, Interrupted
from holdfast.testing.conformance.ownership_steps import added, claimed, open_sessions, sessions

pytestmark = pytest.mark.capability("queues")

NOW = Backoff(0, 1, 0, 0)


@pytest.mark.acceptance("A1-5")
def test_one_owner_claims_a_key_and_the_others_learn_who(face):
    """If two owners claim a dead consumer's key, one gets it, without waiting for the grace."""
    queue, other = (sessions(face.connect(), grace=30) for _ in range(2))
    peer = face.peer()
    open_sessions(queue, 1)
    peer.say(Join("sessions", "doomed", "", "doomed", 1000, keeps_messages=True))
    (held,) = peer.say(Receive("sessions", "doomed", 1)).deliveries
    with queue.owner("a") as first, other.owner("b") as second:
        with pytest.raises(NotAcquired, match="held by doomed"):
            first.claim("chat-0")
        began = time.monotonic()
        work = eventually(lambda: claimed(first, "chat-0"), 20, "an end of its time")
        assert time.monotonic() - began < 20
        assert work.fence > held.fence
        assert first.assignments["chat-0"].fence == work.fence
        with pytest.raises(NotAcquired, match=r"key 'chat-0' of queue 'sessions' .* held by a under fence"):
            second.claim("chat-0")
        assert peer.say(RecordOutcomes("sessions", "doomed", (MessageOutcome(held.entry, "ack"),))).lost == (
            held.entry,
        )
        with pytest.raises(NotFound, match="no message of key 'chat-9': none was published, or it is done"):
            second.claim("chat-9")
        work.ack()
    assert queue.check()


def test_a_ready_key_can_be_claimed_before_earlier_ones(face):
    """It does not wait for its turn; and it does not come again as an event."""
    queue = sessions(face.connect())
    open_sessions(queue, 3)
    with queue.owner() as owner:
        work = owner.claim("chat-2")
        assert work.info == {"user": 2}
        assert sorted(each.key for each in added(owner, 2)) == ["chat-0", "chat-1"]
        assert owner.next(0) is None
    assert queue.check()


def test_an_owner_that_claims_while_it_waits_is_still_woken(face):
    """A claim does not end the wait of the reader: the next assignment comes at once, and not at the next recheck."""
    queue = sessions(face.connect(), grace=30)
    peer = face.peer()
    open_sessions(queue, 1)
    peer.say(Join("sessions", "doomed", "", "doomed", 1000, keeps_messages=True))
    peer.say(Receive("sessions", "doomed", 1))
    with queue.owner() as owner:
        waiting = face.start(lambda: owner.next(20))
        eventually(lambda: queue.stats().waiting == 1, 5, "an owner that waits")
        eventually(lambda: claimed(owner, "chat-0"), 20, "an end of its time")
        time.sleep(0.3)
        began = time.monotonic()
        queue.publish("x", key="next")
        assert waiting.result().assignment.key == "next"
        assert time.monotonic() - began < 2


def test_an_assignment_that_is_claimed_before_its_event_comes_once(face):
    """Otherwise two parts of a program would start the same work."""
    queue = sessions(face.connect())
    open_sessions(queue, 3)
    with queue.owner() as owner:
        (first,) = added(owner, 1)
        assert owner.owned == 3
        assert owner.claim("chat-1").info == {"user": 1}
        (last,) = added(owner, 1)
        assert last.key == "chat-2"
        assert owner.next(0) is None
        for key in ("chat-0", "chat-1", "chat-2"):
            with pytest.raises(NotAcquired, match="this owner has it already, under fence") as refusal:
                owner.claim(key)
            assert (refusal.value.reason, refusal.value.fence) == ("ours", owner.assignments[key].fence)
        assert owner.assignments["chat-0"].fence == first.fence


def test_a_claim_in_the_middle_of_a_fetch_gets_the_assignment_alone(monkeypatch):
    """The assignment is held, and its event is not queued yet: the claim cannot remove it there."""
    claimed, fetch = [], OwnerConsumer.fetch
    with holdfast.connect("memory://meeting") as client:
        queue = sessions(client)
        open_sessions(queue, 2)
        with queue.owner() as owner:

            async def claim_after_fetch(consumer, *args, **options):
                result = await fetch(consumer, *args, **options)
                if not claimed:
                    claimed.append(owner.claim("chat-0"))
                return result

            monkeypatch.setattr(OwnerConsumer, "fetch", claim_after_fetch)
            assert [work.key for work in added(owner, 1)] == ["chat-1"]
            assert [work.key for work in claimed] == ["chat-0"]
            assert owner.next(0) is None


@together
def test_each_key_is_handed_out_once_to_the_reader_or_to_a_claim(face):
    """Two parts of a program that each start what they get never start the same work."""
    keys = [f"chat-{number}" for number in range(40)]
    queue = sessions(face.connect(), ttl=30)
    with queue.owner() as owner:
        reported, claims = [], []
        reader = face.start(lambda: owner.run(reported.append))
        for key in keys:
            queue.publish("x", key=key)
            claims.append(claimed(owner, key))

        def given():
            read = [event.assignment for event in tuple(reported) if isinstance(event, Assigned)]
            return [work.key for work in (*read, *claims) if work is not None]

        eventually(lambda: len(given()) >= len(keys), 20, "all of them, given")
        owner.stop()
        reader.result()
    assert sorted(given()) == sorted(keys)


def test_a_claim_whose_answer_is_lost_becomes_an_event_at_once_also_in_a_full_owner(face):
    """Otherwise the owner would hold the key for minutes without knowing it."""
    client = face.connect()
    queue = sessions(client)
    open_sessions(queue, 3)
    wire = face.wire(client)
    with queue.owner(most=1) as owner:
        (first,) = added(owner, 1)
        wire._faults.append(Fault(TakeOver, 1, applied=True, hangs=False, error=Interrupted()))
        with pytest.raises(Interrupted):
            owner.claim("chat-2")
        assert owner.owned == 1
        (second,) = added(owner, 1, timeout=2)
        assert (first.key, second.key) == ("chat-0", "chat-2")
        assert owner.next(0) is None  # no ready key came with it
        assert queue.stats()[1:5] == (1, 0, 0, 2)
    assert queue.check()


def test_an_assignment_whose_outcome_is_being_recorded_cannot_be_claimed(face):
    """The claim would get a key that another owner has a moment later, and no check would show it."""
    queue = sessions(face.connect())
    open_sessions(queue, 2)
    with queue.owner() as owner:
        added(owner, 1)
        work = owner.assignments["chat-1"]  # it is not handed out yet
        work._held.outcome = "ack"  # as it is while the outcome is being sent
        with pytest.raises(NotAcquired, match="this owner has it already"):
            owner.claim("chat-1")
        work._held.outcome = ""
        assert owner.claim("chat-1").fence == work.fence


def test_the_error_of_a_refused_claim_is_about_the_key(face):
    """A reader of the log learns what to wait for; the ttl of a lease does not matter to it."""
    queue = sessions(face.connect(), backoff=NOW)
    with queue.owner("pod") as owner:
        queue.publish("x", key="chat-0")
        (work,) = added(owner, 1)
        work.release(delay=60)
        with pytest.raises(NotAcquired) as refusal:
            owner.claim("chat-0")
        facts = (refusal.value.name, refusal.value.queue, refusal.value.reason)
        assert facts == ("chat-0", "sessions", "delayed")
        message = "key 'chat-0' of queue 'sessions' was not claimed: its delay has not ended"
        assert str(refusal.value) == message
        without = queue.publish("y")
        with pytest.raises(NotFound, match="a message without a key has only an id, and cannot be claimed"):
            owner.claim(without)


@together
def test_a_claimed_key_is_reported_as_lost_also_before_the_first_event(face):
    """Before any assignment, and not a minute later."""
    client = face.connect()
    queue, other = sessions(client), sessions(face.connect())
    open_sessions(queue, 1)
    wire = face.wire(client)
    with queue.owner("slow") as owner:
        work = owner.claim("chat-0")
        with other.owner("successor") as successor:
            wire.fail(ConsumerHeartbeat)
            (taken,) = added(successor, 1)
            wire.heal()
            eventually(lambda: work._held.session.state == "lost", 10, "a loss")
            event = owner.next(5)
            assert isinstance(event, AssignmentLost)
            assert event.assignment.fence == work.fence
            taken.ack()
        assert owner.owned == 0
