"""Claims: a key that nobody vouches for is had at once, by one; and what a claim leaves behind is told."""

import time

import pytest

import holdfast
from holdfast import Assigned, AssignmentLost, Backoff, NotAcquired, NotFound
from holdfast.commands.queue import ConsumerHeartbeat, Join, MessageOutcome, Receive, RecordOutcomes, TakeOver
from holdfast.core.ownership.consumer import OwnerConsumer
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together
from holdfast.testing.conformance.faults import Fault, Interrupted
from holdfast.testing.conformance.owner_steps import added, claimed, open_sessions, sessions

pytestmark = pytest.mark.capability("queues")

NOW = Backoff(0, 1, 0, 0)


@pytest.mark.acceptance("A1-5")
def test_a_key_is_claimed_by_one_and_the_others_are_told_who(face):
    """Of two who claim what a dead consumer had, one gets it, without waiting for the grace."""
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
        with pytest.raises(NotFound, match="no message of key 'chat-9': none was sent, or it is done"):
            second.claim("chat-9")
        work.ack()
    assert queue.check()


def test_what_nobody_has_is_claimed_before_those_that_came_earlier(face):
    """It need not wait for its turn; and it does not come again as something new."""
    queue = sessions(face.connect())
    open_sessions(queue, 3)
    with queue.owner() as owner:
        work = owner.claim("chat-2")
        assert work.info == {"user": 2}
        assert sorted(each.key for each in added(owner, 2)) == ["chat-0", "chat-1"]
        assert owner.next(0) is None
    assert queue.check()


def test_whoever_claims_while_it_waits_is_rung_all_the_same(face):
    """A claim is not what it waits for: the next that comes is told at once, and not when it looks by itself."""
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


def test_what_was_taken_and_is_claimed_before_it_is_told_comes_once(face):
    """Else two parts of a program would begin the same."""
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


def test_a_claim_that_meets_the_reader_in_the_middle_of_its_taking_is_given_the_work_alone(monkeypatch):
    """It is in the books, and not yet among the news: whoever looks there finds nothing to take away."""
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
def test_each_key_is_given_once_to_whoever_reads_or_to_whoever_claims(face):
    """Two parts of a program that each begin what they are given never begin the same."""
    keys = [f"chat-{number}" for number in range(40)]
    queue = sessions(face.connect(), ttl=30)
    with queue.owner() as owner:
        told, claims = [], []
        reader = face.start(lambda: owner.run(told.append))
        for key in keys:
            queue.publish("x", key=key)
            claims.append(claimed(owner, key))

        def given():
            read = [event.assignment for event in tuple(told) if isinstance(event, Assigned)]
            return [work.key for work in (*read, *claims) if work is not None]

        eventually(lambda: len(given()) >= len(keys), 20, "all of them, given")
        owner.stop()
        reader.result()
    assert sorted(given()) == sorted(keys)


def test_a_claim_whose_answer_is_lost_is_told_at_once_also_to_whoever_is_full(face):
    """Else it would be owned, for a minute or for hours, by somebody who does not know."""
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
        assert owner.next(0) is None  # and nothing that is ready
        assert queue.stats()[1:5] == (1, 0, 0, 2)
    assert queue.check()


def test_what_is_just_being_ended_is_not_given_to_whoever_claims_it(face):
    """It would own what is somebody else's a moment later, and no check would say so."""
    queue = sessions(face.connect())
    open_sessions(queue, 2)
    with queue.owner() as owner:
        added(owner, 1)
        work = owner.assignments["chat-1"]  # nobody was given it yet
        work._held.outcome = "ack"  # as it is while the engine is being told
        with pytest.raises(NotAcquired, match="this owner has it already"):
            owner.claim("chat-1")
        work._held.outcome = ""
        assert owner.claim("chat-1").fence == work.fence


def test_a_refused_claim_says_why_in_words_about_the_key(face):
    """Whoever reads it in a log knows what to wait for; a lease, and for how long, is none of its matter."""
    queue = sessions(face.connect(), backoff=NOW)
    with queue.owner("pod") as owner:
        queue.publish("x", key="chat-0")
        (work,) = added(owner, 1)
        work.release(delay=60)
        with pytest.raises(NotAcquired) as refusal:
            owner.claim("chat-0")
        facts = (refusal.value.name, refusal.value.queue, refusal.value.reason)
        assert facts == ("chat-0", "sessions", "delayed")
        said = "key 'chat-0' of queue 'sessions' was not claimed: its delay has not ended"
        assert str(refusal.value) == said
        without = queue.publish("y")
        with pytest.raises(NotFound, match="a message without a key has only an id, and cannot be claimed"):
            owner.claim(without)


@together
def test_what_was_claimed_is_told_as_lost_also_if_nobody_had_asked_for_news_before(face):
    """Before anything new, and not a minute later."""
    client = face.connect()
    queue, other = sessions(client), sessions(face.connect())
    open_sessions(queue, 1)
    wire = face.wire(client)
    with queue.owner("slow") as owner:
        work = owner.claim("chat-0")
        with other.owner("heir") as heir:
            wire.fail(ConsumerHeartbeat)
            (taken,) = added(heir, 1)
            wire.heal()
            eventually(lambda: work._held.session.state == "lost", 10, "a loss")
            event = owner.next(5)
            assert isinstance(event, AssignmentLost)
            assert event.assignment.fence == work.fence
            taken.ack()
        assert owner.owned == 0
