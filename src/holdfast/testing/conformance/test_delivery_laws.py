"""How often each call delivers: what the page about queues says of each, shown to happen."""

import pytest

from holdfast.commands.queue import BATCH_MAX, Join, Leave, Receive
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together, wakers_of

pytestmark = pytest.mark.capability("queues")


@pytest.mark.acceptance("C-11")
@together
def test_delivery_is_at_least_once_and_there_is_help_against_the_second_time(face):
    """A consumer that dies after the effect and before the ack makes the message come again, under the same id.

    A handler that stores the id beside the effect, or works under `once`, has the effect once; a larger fence shows a
    resource which of the two deliveries is the late one.
    """
    client = face.connect()
    queue, payments, paid = client.queue("jobs", ttl=1, grace=0.2), client.once("payments"), []
    queue.publish("pay")
    peer = face.peer()
    peer.say(Join("jobs", "doomed", "", "doomed", 1000))
    (first,) = peer.say(Receive("jobs", "doomed", 1)).deliveries
    payments.call(first.message.id, lambda: paid.append("by the first"))  # it dies before the ack

    with queue.consumer() as consumer:
        (again,) = consumer.receive(timeout=20)
        with again:
            payments.call(again.id, lambda: paid.append("by the second"))

    assert (again.id, again.redelivered) == (first.message.id, True)
    assert again.fence > first.fence
    assert paid == ["by the first"]


@pytest.mark.acceptance("C-11")
@together
def test_a_repeated_publish_call_publishes_twice_without_a_dedup_key(face):
    """One call publishes once, whatever happens to its answer.

    Two calls are two, because the library cannot know better.
    """
    queue = face.connect().queue("jobs")
    plain = [queue.publish("x") for _ in range(2)]
    keyed = [queue.publish("y", dedup_key="order-9") for _ in range(2)]

    assert len(set(plain)) == 2
    assert len(set(keyed)) == 1
    assert queue.stats().counts == {"published": 3, "deduplicated": 1}


@pytest.mark.acceptance("A1-18")
def test_a_consumer_that_does_not_read_holds_no_more_than_it_asked_for(face):
    """The rest stays in the engine.

    A wake-up carries nothing, so a hundred of them are one, and none can be dropped.
    """
    client, other = face.connect(), face.connect()
    queue, theirs = client.queue("jobs"), other.queue("jobs")
    with queue.consumer(prefetch=4) as slow:
        running = face.start(slow.receive, timeout=20)
        eventually(lambda: theirs.stats().waiting == 1, what="a reader that waits")
        theirs.publish("first")
        held = list(running.result())
        theirs.publish_many(range(300))
        held += slow.receive(2, timeout=5)  # the prefetch is full, and two of its messages are read
        for number in range(20):
            theirs.publish(number)

        assert len(held) == 3
        assert (slow.in_flight, theirs.stats().in_flight, theirs.stats().ready) == (4, 4, 317)
        assert len(wakers_of(client)) <= 1


def test_a_consumer_that_leaves_with_many_messages_requeues_them_in_steps(face):
    """A server does nothing else during a step, so no step may take as long as all messages of a large consumer."""
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


def test_a_receive_that_arrives_late_takes_nothing(face):
    """Its second copy was answered before. Messages that the late copy took would stay unseen for long."""
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


def test_the_next_receive_finds_what_a_late_copy_took(face):
    """The consumer held nothing newer, so the engine could not see that the copy was late."""
    client = face.connect()
    queue = client.queue("jobs")
    with queue.consumer(prefetch=2) as consumer:
        queue.publish("unseen")
        assert len(face.peer().say(Receive("jobs", queue.consumers()[0].token, 1)).deliveries) == 1
        (message,) = consumer.receive(timeout=0)
        assert (message.body, message.attempt) == ("unseen", 1)
        message.ack()
