"""Keys, priorities and partitions: the order of messages, where one is asked for."""

import random
import threading
from collections import Counter

import pytest

from holdfast import Backoff, InvalidConfig, InvalidName
from holdfast.commands.queue import Join, NewMessage, Publish, Receive
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together

pytestmark = pytest.mark.capability("queues")

NOW = Backoff(0, 1, 0, 0)


def taken(consumer, most=100):
    return consumer.receive(most, timeout=0)


@pytest.mark.large
def test_messages_of_a_key_are_delivered_one_at_a_time_in_order(face):
    """The first blocks no other key; the next comes when it is acked, and messages without a key wait for nothing."""
    queue = face.connect().queue("orders")
    for number in range(3):
        queue.publish(("ann", number), key="ann")
    queue.publish(("bob", 0), key="bob")
    queue.publish("free")
    with queue.consumer(prefetch=9) as consumer:
        first, bob, free = taken(consumer)
        assert [first.body, bob.body, free.body] == [["ann", 0], ["bob", 0], "free"]
        assert [first.key, bob.key, free.key] == ["ann", "bob", ""]
        assert taken(consumer) == []
        assert (queue.stats().behind, queue.stats().in_flight) == (2, 3)
        assert [seen.body for seen in queue.peek("behind")] == [["ann", 1], ["ann", 2]]
        first.ack()
        (second,) = taken(consumer)
        assert second.body == ["ann", 1]
        assert second.fence > first.fence
        for message in (second, bob, free):
            message.ack()
        (third,) = taken(consumer)
        third.ack()
    assert queue.stats()[1:6] == (0, 0, 0, 0, 0)
    assert queue.stats().behind == 0
    assert queue.check()


def test_the_order_of_a_key_survives_retries_releases_and_losses(face):
    """While the first is retried, later ones of its key wait: otherwise a retry would change the order."""
    queue = face.connect().queue("orders", backoff=NOW)
    queue.publish_many([1, 2, 3], key="k")
    seen = []
    with queue.consumer() as consumer:
        for how in ("retry", "release", "leave"):
            (message,) = consumer.receive(timeout=5)
            seen.append(message.body)
            if how != "leave":
                getattr(message, how)()
    with queue.consumer() as consumer:
        for _ in range(3):
            (message,) = consumer.receive(timeout=5)
            seen.append(message.body)
            message.ack()
    assert seen == [1, 1, 1, 1, 2, 3]
    assert queue.check()


def test_a_dead_letter_frees_its_key_and_comes_back_behind_all(face):
    """A message that always fails must not block its key for ever; once it is redriven, it is the newest."""
    queue = face.connect().queue("orders")
    queue.publish_many(["bad", "good"], key="k")
    with queue.consumer(prefetch=9) as consumer:
        (bad,) = taken(consumer)
        bad.reject("of no use")
        (good,) = taken(consumer)
        assert good.body == "good"
        assert [(dead_letter.body, dead_letter.key) for dead_letter in queue.dlq.list()] == [("bad", "k")]
        assert queue.dlq.redrive(where=lambda dead_letter: dead_letter.key == "k") == 1
        assert (taken(consumer), queue.stats().behind) == ([], 1)
        good.ack()
        (again,) = taken(consumer)
        assert again.body == "bad"
        again.ack()
    assert queue.check()


@together
def test_many_failing_workers_keep_the_order_of_keys(face):
    """T31: one worker at a time handles a key, and the effects have the order of publication."""
    queue = face.connect().queue("orders", backoff=NOW, max_attempts=50)
    rng = random.Random(7)
    bodies = [[key, number] for number in range(6) for key in range(10)]
    queue.publish_many(bodies, key=lambda body: f"k{body[0]}")
    done, running, guard, twice = [], Counter(), threading.Lock(), []

    def handle(message):
        with guard:
            running[message.key] += 1
            twice.extend([message.key] * (running[message.key] > 1))
            fails = rng.random() < 0.2
        with guard:
            running[message.key] -= 1
            if fails:
                raise ValueError("once more")
            done.append((*message.body, message.fence))

    workers = [face.connect().queue("orders", backoff=NOW, max_attempts=50).worker(handle) for _ in range(3)]
    running_workers = [face.start(worker.run) for worker in workers]
    eventually(lambda: len(done) == len(bodies), 40, "an end of all work")
    for worker in workers:
        worker.stop()
    for each in running_workers:
        each.result(20)
    assert twice == []
    for key in range(10):
        mine = [(number, fence) for one, number, fence in done if one == key]
        assert [number for number, _ in mine] == list(range(6))
        assert mine == sorted(mine, key=lambda each: each[1])
    assert queue.check()


def test_urgent_messages_come_first_and_none_starves(face):
    """T32: out of 7 fetches, 4 try `high` first and 1 tries `low`, however many messages are urgent."""
    queue = face.connect().queue("jobs")
    queue.publish_many([f"low {number}" for number in range(40)], priority="low")
    queue.publish_many([f"usual {number}" for number in range(40)])
    queue.publish_many([f"high {number}" for number in range(40)], priority="high")
    assert [seen.body for seen in queue.peek("ready", 41)][0::40] == ["high 0", "usual 0"]
    order = []
    with queue.consumer() as consumer:
        for _ in range(35):
            (message,) = consumer.receive(timeout=5)
            order.append(message.body.split()[0])
            message.ack()
        assert Counter(order) == {"high": 20, "usual": 10, "low": 5}
        rest = queue.stats().ready
        assert rest == 120 - 35
    assert queue.check()


def test_a_receive_with_a_fair_share_leaves_messages_for_others(engine):
    """Messages that become ready together are spread over all consumers.

    They do not all go to the first one, or to the one that asks most often.
    """
    peer = engine.peer()
    for token in ("a", "b", "c"):
        peer.say(Join("jobs", token, "", token, 60_000))
    peer.say(Publish("jobs", "call", tuple(NewMessage(f"id{number}", b"x") for number in range(30))))

    def takes(token):
        return len(peer.say(Receive("jobs", token, 100, fair_share=True)).deliveries)

    assert [takes(token) for token in "aaabc"] == [10, 1, 1, 6, 4]
    assert takes("b") == 3
    assert [takes("a") for _ in range(6)] == [1, 1, 1, 1, 1, 0]


BAD = [
    ({"key": ""}, InvalidName, "a key must not be empty"),
    ({"key": "a\0b"}, InvalidName, "a key must not contain a NUL"),
    ({"key": 7}, InvalidName, "^7 is refused: a key must be text"),
    ({"key": "x" * 513}, InvalidName, "a key may have at most 512"),
    ({"key": "k", "delay": 5}, InvalidConfig, "cannot have a delay"),
    ({"priority": "urgent"}, InvalidConfig, "high, normal, low"),
    ({"priority": None}, InvalidConfig, "high, normal, low"),
]


@pytest.mark.parametrize(("options", "error", "says"), BAD)
def test_a_bad_key_or_priority_is_refused_before_anything_is_sent(face, options, error, says):
    """The error names the rule; the queue is as it was."""
    queue = face.connect().queue("jobs")
    with pytest.raises(error, match=says):
        queue.publish("x", **options)
    with pytest.raises(error, match=says):
        queue.publish_many(["x"], **options)
    assert queue.stats().counts == {}


def test_a_key_goes_to_one_partition_and_partitions_are_queues(face):
    """So the order of a key is kept, and a partition can do everything that a queue can."""
    whole = face.connect().queue("orders").partitioned(4)
    for number in range(20):
        whole.publish(number, key=f"k{number % 5}")
    whole.publish("of no key")
    stats = whole.stats()
    assert (stats.ready, stats.behind) == (6, 15)
    assert len({part.name for part in whole.parts}) == 4
    assert len(set(whole.publish_many(range(30), key=lambda number: f"k{number % 5}"))) == 30
    assert whole.stats().behind == 45
    part = whole.part("k3")
    with part.consumer(prefetch=9) as consumer:
        messages = [message for message in taken(consumer) if message.key == "k3"]
        assert [message.body for message in messages] == [3]
    assert whole.check().messages == 51
