"""What the engine has not heard yet: work that is done is not given back, whatever ends meanwhile."""

import threading

import pytest
from law_faces import together

from holdfast.commands.queues import Conclude, Leave
from holdfast.testing import eventually

pytestmark = pytest.mark.carried("queues")


@together
def test_the_end_of_a_consumer_does_not_overtake_its_words(face):
    """It has said `ack`, and was believed; then the engine comes back just as the block is left."""
    client, other = face.connect(), face.connect().queue("jobs")
    queue = client.queue("jobs")
    queue.publish_many(["done", "not begun"])
    wire = face.wire(client)
    with queue.consumer(prefetch=2) as consumer:
        done, _ = consumer.receive(2, timeout=5)
        wire.fail(Conclude)
        done.ack()
        assert other.stats().in_flight == 2
    assert wire.commands(Leave) == []
    wire.heal()
    eventually(lambda: other.stats().consumers == 0, what="an end that was told after all")

    assert [seen.body for seen in other.peek()] == ["not begun"]
    assert other.stats().counts == {"acked": 1, "published": 2, "released": 1, "taken": 2}


@together
def test_a_worker_that_stops_in_an_outage_gives_nothing_back_that_is_done(face):
    """A deployment while the engine is away: everything that handlers have done stays done."""
    client, other = face.connect(), face.connect().queue("jobs")
    queue = client.queue("jobs")
    queue.publish_many(range(8))
    gate, begun = threading.Event(), threading.Semaphore(0)

    def handle(_message):
        begun.release()
        assert gate.wait(20)

    worker = queue.worker(handle, concurrency=4)
    wire = face.wire(client)
    running = face.start(worker.run)
    for _ in range(4):
        assert begun.acquire(timeout=20)
    wire.fail()
    worker.stop()
    gate.set()
    running.result(30)
    wire.heal()
    eventually(lambda: other.stats().consumers == 0, what="an end that was told after all")

    assert sorted(seen.body for seen in other.peek()) == [4, 5, 6, 7]
    assert other.stats().counts.get("lost", 0) == 0
