"""Consumers that die, freeze or are only slow: dead ones are replaced, slow ones are not, and a loss is reported."""

import random
import time

import pytest

from holdfast import Backoff, LeaseLost, Unavailable
from holdfast.clock import jittered_up
from holdfast.commands import NotHeld
from holdfast.commands.queue import (
    ACK,
    BATCH_MAX,
    ConsumerHeartbeat,
    Join,
    MessageOutcome,
    Receive,
    ReclaimExpired,
    RecordOutcomes,
)
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import passing, together

pytestmark = pytest.mark.capability("queues")

TTL_S = 1.0


def waiting_labels(client, **options):
    return client.queue("jobs", ttl=TTL_S, grace=0.2, **options)


class Doomed:
    """A consumer that receives messages and sends no heartbeat."""

    def __init__(self, face, count, token="doomed", ttl_s=TTL_S):
        self.peer, self.token = face.peer(), token
        self.peer.say(Join("jobs", token, "", token, int(ttl_s * 1000)))
        self.entries = [each.entry for each in self.peer.say(Receive("jobs", token, count)).deliveries]


@pytest.mark.acceptance("A1-3", "A1-4")
@together
def test_a_dead_consumers_messages_are_reclaimed_soon_after_its_ttl(face):
    """By checks alone: no event announces the death. Its late outcomes are refused."""
    queue = waiting_labels(face.connect())
    queue.publish("x")
    doomed = Doomed(face, 1)
    began = time.monotonic()
    with queue.consumer() as consumer:
        (message,) = consumer.receive(timeout=20)
        passed = time.monotonic() - began
        assert (message.body, message.attempt, message.redelivered) == ("x", 2, True)
        assert TTL_S * 0.9 <= passed < TTL_S + 10
        assert doomed.peer.say(RecordOutcomes("jobs", "doomed", (MessageOutcome(doomed.entries[0], ACK),))).lost != ()
        assert isinstance(doomed.peer.say(ConsumerHeartbeat("jobs", "doomed", 1000)), NotHeld)
        message.ack()
    assert queue.stats().counts["crashed"] == 1
    assert queue.check()


@pytest.mark.acceptance("A1-2")
@together
def test_a_slow_consumer_keeps_its_messages(face):
    """However long its work takes: its process sends heartbeats."""
    ours, theirs = (waiting_labels(face.connect()) for _ in range(2))
    ours.publish("slow")
    with ours.consumer() as slow, theirs.consumer() as other:
        (message,) = slow.receive(timeout=5)
        assert other.receive(timeout=3 * TTL_S) == []
        message.check()
        assert not message.lost
        message.ack()
    assert ours.stats().counts.get("crashed", 0) == 0


def test_a_message_may_be_handled_for_ten_ttls_without_a_redelivery(timed):
    """T5: while others wait for messages, and check for dead consumers all the time."""
    ttl = 30.0
    ours, theirs = (timed.connect().queue("jobs", ttl=ttl, grace=0) for _ in range(2))
    ours.publish("slow")
    with ours.consumer("slow") as slow, theirs.consumer("other") as other:
        (message,) = slow.receive(timeout=5)
        waiting = timed.start(other.receive, timeout=10 * ttl)
        for _ in range(33):
            timed.clock.advance(ttl / 3)
            eventually(lambda: min(each.remaining for each in ours.consumers()) > ttl / 2, what="two that are heard of")
            message.check()
        assert waiting.result() == []
        message.ack()
    assert ours.stats().counts == {"acked": 1, "published": 1, "received": 1}


def test_attempts_follow_the_backoff_also_after_a_redrive(timed):
    """T29: each delay is twice as long, within the jitter; never too early; and a redrive starts again."""
    backoff = Backoff(first=10, factor=2, most=30, jitter=0.1)
    queue = timed.connect().queue("jobs", max_attempts=4, backoff=backoff)
    queue.publish("x")
    for time_ in range(2):
        for attempt, span in ((1, 10), (2, 20), (3, 30), (4, None)):
            with queue.consumer() as consumer:
                (message,) = consumer.receive(timeout=0)
                assert message.attempt == attempt
                message.retry()
                if span is not None:
                    due = queue.stats().next_due
                    assert 0.9 * span <= due <= 1.1 * span
                    timed.clock.advance(due - 0.01)
                    assert consumer.receive(timeout=0) == []
                    timed.clock.advance(0.01)
        assert queue.dlq.redrive() == 1, f"round {time_}"
    assert queue.stats().counts["retried"] == 6


@pytest.mark.acceptance("A1-14")
def test_slow_consumers_do_not_hide_a_dead_one(timed):
    """The check finds dead consumers, not old messages."""
    client = timed.connect()
    queue = waiting_labels(client)
    queue.publish_many(range(201))
    with queue.consumer(prefetch=200) as slow:
        held = slow.receive(200, timeout=5)
        held += slow.receive(200, timeout=5)
        doomed = Doomed(timed, 1)
        assert len(held) == 200
        assert len(doomed.entries) == 1
        with passing(timed.clock), queue.consumer("other") as other:
            (message,) = other.receive(timeout=60)
            assert message.body == 200
            message.ack()
        for each in held:
            each.ack()
    assert queue.stats().counts["crashed"] == 1


@pytest.mark.acceptance("A1-6", "A1-7")
@pytest.mark.parametrize("attempts", [4, 1])
def test_a_message_that_kills_its_consumer_becomes_a_dead_letter(timed, attempts):
    """After as many deaths as there are attempts, each time alone with its consumer."""
    queue = waiting_labels(timed.connect(), max_attempts=attempts)
    queue.publish("poison")
    with queue.consumer("watching") as watching, passing(timed.clock):
        for time_ in range(attempts):
            doomed = Doomed(timed, 1, f"doomed{time_}", ttl_s=0.2)
            assert len(doomed.entries) == 1
            eventually(lambda: queue.stats().in_flight == 0, what="a death that is found")
        assert watching.in_flight == 0
    (dead_letter,) = queue.dlq.list()
    assert (dead_letter.reason, dead_letter.attempts, dead_letter.last_consumer) == (
        "attempts used up",
        attempts,
        f"doomed{attempts - 1}",
    )
    assert queue.stats()[1:5] == (0, 0, 0, 0)


@together
def test_a_consumer_that_was_declared_dead_learns_it_and_comes_back(face):
    """With a new session, by itself; others have its messages, and its late outcomes are refused."""
    client = face.connect()
    queue, other = waiting_labels(client), waiting_labels(face.connect())
    queue.publish("x")
    wire = face.wire(client)
    with queue.consumer() as consumer, other.consumer() as successor:
        (message,) = consumer.receive(timeout=5)
        before = queue.consumers()
        wire.fail(ConsumerHeartbeat)
        assert message.lost.wait(20)
        with pytest.raises(LeaseLost):
            message.check()
        (again,) = successor.receive(timeout=20)
        assert (again.id, again.fence > message.fence) == (message.id, True)
        with pytest.raises(LeaseLost):
            message.ack()
        again.ack()
        other.publish("next")
        # Its heartbeats get lost even now: the answer to a receive shows that it is dead.
        assert [each.body for each in consumer.receive(timeout=20)] == ["next"]
        wire.heal()
        assert len(before) == 2
    assert queue.stats().counts["lost"] == 1


def test_a_consumer_that_was_cut_off_and_not_reclaimed_has_lost_nothing(timed):
    """After an outage of the engine all heartbeats are late. No consumer is dead, and nothing is redelivered."""
    client = timed.connect()
    queue = waiting_labels(client)
    queue.publish_many(range(2))
    wire = timed.wire(client)
    with queue.consumer(prefetch=2) as consumer:
        one, two = consumer.receive(2, timeout=5)
        eventually(lambda: wire.commands(ReclaimExpired), what="a first look")
        wire.fail()
        timed.clock.advance(5 * TTL_S)
        assert one.lost
        with pytest.raises(LeaseLost, match="expired"):
            one.check()
        wire.heal()
        with passing(timed.clock):
            eventually(lambda: not two.lost, what="the end of a doubt")
        two.check()
        one.ack()
        two.ack()
    assert queue.stats().counts == {"acked": 2, "published": 2, "received": 2}


@pytest.mark.acceptance("A1-15")
def test_a_check_comes_up_to_a_tenth_later_than_its_interval():
    """Never earlier; and spread over that tenth, so that no two clients check in step."""
    looks = [jittered_up(5_000_000_000, random.getrandbits(40)) for _ in range(1000)]

    assert min(looks) >= 5_000_000_000
    assert max(looks) < 5_500_000_000
    assert max(looks) - min(looks) > 400_000_000


def test_checks_for_dead_consumers_are_paced_for_all_clients(timed):
    """About one command per interval and client, and most of them are too early to do anything."""
    clients = [timed.connect() for _ in range(3)]
    wires = [timed.wire(client) for client in clients]
    queues = [client.queue("jobs", ttl=30, grace=0) for client in clients]
    consumers = [queue.consumer() for queue in queues]
    for consumer in consumers:
        consumer.__enter__()
    began = timed.clock.now_ns()
    with passing(timed.clock):
        eventually(lambda: timed.clock.now_ns() - began > 60e9, timeout=30, what="a minute")
    seconds = (timed.clock.now_ns() - began) / 1e9
    looks = sum(len(wire.commands(ReclaimExpired)) for wire in wires)
    for consumer in consumers:
        consumer.__exit__(None, None, None)
    assert looks <= 3 * (seconds / 5 + 2)
    assert looks >= seconds / 6 - 3


@together
def test_a_consumer_goes_on_through_an_outage(face):
    """It waits while trouble may pass; the application does nothing."""
    client = face.connect()
    queue = waiting_labels(client)
    wire = face.wire(client)
    with queue.consumer() as consumer:
        wire.fail(Receive)
        running = face.start(consumer.receive, timeout=30)
        eventually(lambda: len(wire.commands(Receive)) >= 2, what="another try")
        face.connect().queue("jobs").publish("x")
        wire.heal()
        (message,) = running.result(30)
        message.ack()
    assert message.body == "x"


@together
def test_an_outcome_that_cannot_be_sent_is_sent_later(face):
    """The work is done, but the engine has not confirmed it: the block says so, and the keeper goes on sending."""
    client = face.connect()
    queue = client.queue("jobs")
    queue.publish("x")
    wire = face.wire(client)
    with queue.consumer() as consumer:
        (message,) = consumer.receive(timeout=5)
        wire.fail(RecordOutcomes)
        with pytest.raises(Unavailable) as unavailable, message:
            pass
        assert unavailable.value.outcome == "unknown"
        wire.heal()
        eventually(lambda: queue.stats().in_flight == 0, what="an outcome sent by the keeper")
    assert queue.stats().counts["acked"] == 1


def test_messages_requeued_at_the_end_of_a_block_are_lost_to_running_work(face):
    """Also if they are requeued in several steps. A finished message is not lost."""
    queue = face.connect().queue("jobs")
    queue.publish_many(range(2 * BATCH_MAX + 2))
    with queue.consumer(prefetch=2 * BATCH_MAX + 2) as consumer:
        done, *left = consumer.receive(2 * BATCH_MAX + 2, timeout=5)
        done.ack()
        assert not any(message.lost for message in left)
    assert [message.id for message in left if not message.lost] == []
    assert not done.lost
    for message in (left[0], left[-1]):
        with pytest.raises(LeaseLost):
            message.check()
    assert queue.stats().ready == 2 * BATCH_MAX + 1


def test_keys_that_an_ending_owner_gives_back_are_lost(face):
    """Work that watches `lost` stops, and does not run beside the next owner's."""
    queue = face.connect().queue("jobs")
    queue.publish("x", key="chat")
    with queue.owner() as owner:
        work = owner.next(timeout=5).assignment
        assert not work.lost
    assert work.lost
    with pytest.raises(LeaseLost):
        work.check()
