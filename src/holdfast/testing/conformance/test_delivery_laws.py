"""How often each API delivers: what the page of queues says of each of them, seen to happen."""

import pytest

from holdfast.commands.queue import BATCH_MAX, Join, Leave, Receive
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together, wakers_of

pytestmark = pytest.mark.capability("queues")


@pytest.mark.acceptance("C-11")
@together
def test_a_message_comes_at_least_once_and_help_against_the_second_time_is_at_hand(face):
    """Its consumer died after the effect and before the word about it: it comes again, under the same id.

    Whoever keeps that id beside the effect, or does it under `once`, has the effect once; a larger fence tells a
    resource which of the two is the late one.
    """
    client = face.connect()
    queue, payments, paid = client.queue("jobs", ttl=1, grace=0.2), client.once("payments"), []
    queue.publish("pay")
    peer = face.peer()
    peer.say(Join("jobs", "doomed", "", "doomed", 1000))
    (first,) = peer.say(Receive("jobs", "doomed", 1)).deliveries
    payments.call(first.message.id, lambda: paid.append("by the first"))  # and it dies before it says so

    with queue.consumer() as consumer:
        (again,) = consumer.receive(timeout=20)
        with again:
            payments.call(again.id, lambda: paid.append("by the second"))

    assert (again.id, again.redelivered) == (first.message.id, True)
    assert again.fence > first.fence
    assert paid == ["by the first"]


@pytest.mark.acceptance("C-11")
@together
def test_a_publish_that_the_program_repeats_sends_twice_unless_it_has_a_key(face):
    """One call sends once, whatever happens to its answer; two calls are two, because nobody can know better."""
    queue = face.connect().queue("jobs")
    plain = [queue.publish("x") for _ in range(2)]
    keyed = [queue.publish("y", dedup_key="order-9") for _ in range(2)]

    assert len(set(plain)) == 2
    assert len(set(keyed)) == 1
    assert queue.stats().counts == {"published": 3, "deduplicated": 1}


@pytest.mark.acceptance("A1-18")
def test_a_reader_that_does_not_read_costs_no_more_than_it_has_asked_for(face):
    """The rest stays in the engine. A ring carries nothing, so a hundred of them are one, and none can be dropped."""
    client, other = face.connect(), face.connect()
    queue, theirs = client.queue("jobs"), other.queue("jobs")
    with queue.consumer(prefetch=4) as slow:
        running = face.start(slow.receive, timeout=20)
        eventually(lambda: theirs.stats().waiting == 1, what="a reader that waits")
        theirs.publish("first")
        held = list(running.result())
        theirs.publish_many(range(300))
        held += slow.receive(2, timeout=5)  # as many as there is room for are here, and two of them are read
        for number in range(20):
            theirs.publish(number)

        assert len(held) == 3
        assert (slow.in_flight, theirs.stats().in_flight, theirs.stats().ready) == (4, 4, 317)
        assert len(wakers_of(client)) <= 1


def test_who_leaves_with_many_messages_gives_them_back_a_part_at_a_time(face):
    """A server does nothing else in a step: none may take as long as all of a large consumer's messages."""
    client = face.connect()
    queue, wire = client.queue("jobs"), face.wire(client)
    ids = queue.publish_many(range(3 * BATCH_MAX))
    with queue.consumer(prefetch=len(ids)) as consumer:
        while consumer.in_flight < len(ids):
            consumer.receive(len(ids), timeout=5)

    assert len(wire.commands(Leave)) == 3
    assert [seen.id for seen in queue.peek(limit=len(ids))] == ids
    assert {seen.attempts for seen in queue.peek(limit=len(ids))} == {0}
    assert queue.stats().counts == {"published": len(ids), "released": len(ids), "received": len(ids)}
    assert queue.check()


def test_a_question_that_comes_late_takes_nothing(face):
    """Another one was asked in its place, and is answered. What the late one took, nobody would hear of for long."""
    client, other = face.connect(), face.connect().queue("jobs")
    wire, peer = face.wire(client), face.peer()
    other.publish("first")
    with client.queue("jobs").consumer(prefetch=2) as busy, other.consumer() as idle:
        (first,) = busy.receive(timeout=5)
        other.publish("second")

        late = peer.say(wire.commands(Receive)[-1])

        assert [each.message.id for each in late.deliveries] == [first.id]
        (second,) = idle.receive(timeout=5)
        assert second.body == "second"
        first.ack()
        second.ack()
    assert other.stats().counts == {"acked": 2, "published": 2, "received": 2}


def test_what_a_late_question_has_taken_is_found_by_the_next_one(face):
    """Nothing was with the consumer that is newer, so that it could not be seen that it was late."""
    client = face.connect()
    queue = client.queue("jobs")
    with queue.consumer(prefetch=2) as consumer:
        queue.publish("unseen")
        assert len(face.peer().say(Receive("jobs", queue.consumers()[0].token, 1)).deliveries) == 1
        (message,) = consumer.receive(timeout=0)
        assert (message.body, message.attempt) == ("unseen", 1)
        message.ack()
