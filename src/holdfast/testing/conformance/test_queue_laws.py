"""Queues: nothing is lost, each message is with one consumer at a time, and failed messages are kept."""

import time

import pytest

from holdfast import (
    Backoff,
    InvalidConfig,
    LeaseLost,
    NotFound,
    NotOwner,
    QueueFull,
    Reject,
    Release,
    Retry,
)
from holdfast.commands.queue import ConsumerHeartbeat, Join, Leave, Publish, Receive, RecordOutcomes
from holdfast.testing import eventually

pytestmark = pytest.mark.capability("queues")

NOW = Backoff(0, 1, 0, 0)
NAMES = ["jobs", "a:b:c", "with spaces", "очередь/✓", "{tag}", "/"]


def take_all(queue, count=100):
    """Receive and ack every ready message."""
    with queue.consumer(prefetch=count) as consumer:
        messages = consumer.receive(count, timeout=0)
        for message in messages:
            message.ack()
        return [message.body for message in messages]


@pytest.mark.acceptance("A1-21")
@pytest.mark.parametrize("name", NAMES)
def test_messages_published_before_the_first_consumer_are_delivered(face, name):
    """In order, with body and headers; from any client."""
    body = {"id": 7, "text": "ünicode", "list": [1, None, 2.5]}
    queue = face.connect().queue(name)
    first = queue.publish(body, headers={"trace": "x✓"})
    rest = queue.publish_many([1, "two"])

    with face.connect().queue(name).consumer(prefetch=9) as consumer:
        messages = consumer.receive(9, timeout=5)
        assert [message.body for message in messages] == [body, 1, "two"]
        assert [message.id for message in messages] == [first, *rest]
        assert [message.headers for message in messages] == [{"trace": "x✓"}, {}, {}]
        assert [(message.attempt, message.redelivered) for message in messages] == [(1, False)] * 3
        assert abs(messages[0].published - time.time()) < 60 or face.clock
        fences = [message.fence for message in messages]
        assert fences == sorted(set(fences))
        for message in messages:
            message.ack()
    assert queue.stats().in_flight == queue.stats().ready == 0
    assert queue.check()


@pytest.mark.large
def test_a_message_wakes_a_waiting_consumer(face):
    """Without polling: it slept, and was woken."""
    queue = face.connect().queue("jobs")
    theirs = face.connect()
    waiting = theirs.queue("jobs")

    def take_one():
        with waiting.consumer() as consumer:
            for message in consumer:
                with message:
                    return message.body
        return None

    running = face.start(take_one)
    eventually(lambda: queue.stats().waiting == 1, what="a consumer that waits")
    wire = face.wire(theirs)
    queue.publish("now")

    assert running.result() == "now"
    assert len(wire.commands(Receive)) <= 2


def test_competing_consumers_share_messages_and_none_comes_twice(face):
    """Many consumers, one of them per message."""
    queue = face.connect().queue("jobs")
    queue.publish_many(range(60))
    got = []

    def work():
        mine = face.connect().queue("jobs")
        with mine.consumer(prefetch=5) as consumer:
            while messages := consumer.receive(5, timeout=0):
                for message in messages:
                    with message:
                        got.append(message.body)

    for running in [face.start(work) for _ in range(3)]:
        running.result()
    assert sorted(got) == list(range(60))
    assert queue.check()


@pytest.mark.large
def test_each_outcome_has_its_effect(face):
    """Ack, retry, release and reject, by method, with their counters."""
    queue = face.connect().queue("jobs", backoff=NOW)
    queue.publish_many(["done", "failed", "unused", "bad"])
    with queue.consumer(prefetch=4) as consumer:
        done, failed, unused, bad = consumer.receive(4, timeout=5)
        done.ack()
        failed.retry(reason="oh")
        unused.release()
        bad.reject("no use")
        again = consumer.receive(4, timeout=5)
        assert [(message.body, message.attempt) for message in again] == [("failed", 2), ("unused", 1)]
        (dead_letter,) = queue.dlq.list()
        assert (dead_letter.body, dead_letter.reason, dead_letter.attempts) == ("bad", "no use", 1)
        for message in again:
            message.ack()
    counts = queue.stats().counts
    assert {word: counts[word] for word in ("published", "acked", "retried", "released", "dead_lettered")} == {
        "published": 4,
        "acked": 3,
        "retried": 1,
        "released": 1,
        "dead_lettered": 1,
    }


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (None, "gone"),
        (Retry(0), "ready 2"),
        (Release(), "ready 1"),
        (Reject("useless"), "dead useless"),
        (ValueError("broken"), "ready 2"),
    ],
    ids=["nothing", "retry", "release", "dead", "error"],
)
def test_the_end_of_a_block_is_the_outcome_of_its_message(face, error, becomes):
    """`Retry`, `Release` and `Reject` stay inside the block; a real error leaves it."""
    queue = face.connect().queue("jobs", backoff=NOW)
    queue.publish("x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(timeout=5)
        try:
            with message:
                if error is not None:
                    raise error
            left = None
        except ValueError as failure:
            left = failure
        assert left is (error if isinstance(error, ValueError) else None)
        (again, *_) = [*consumer.receive(timeout=0), None]
        dead_letters = queue.dlq.list()
        found = f"ready {again.attempt}" if again else f"dead {dead_letters[0].reason}" if dead_letters else "gone"
        assert found == becomes
        if again:
            again.ack()


def test_attempts_that_are_used_up_make_a_dead_letter(face):
    """With the number of attempts, the error of the last one, and its consumer."""
    queue = face.connect().queue("jobs", max_attempts=3, backoff=NOW)
    sent = queue.publish("x")
    with queue.consumer(name="pod-7") as consumer:
        for attempt in (1, 2, 3):
            (message,) = consumer.receive(timeout=5)
            assert (message.attempt, message.max_attempts, message.redelivered) == (attempt, 3, attempt > 1)
            with pytest.raises(ValueError, match="no luck"), message:
                raise ValueError(f"no luck {attempt}")
        assert consumer.receive(timeout=0) == []
    (dead_letter,) = queue.dlq.list()
    assert (dead_letter.id, dead_letter.reason, dead_letter.attempts) == (sent, "attempts used up", 3)
    assert (dead_letter.error, dead_letter.first_consumer, dead_letter.last_consumer) == (
        "ValueError('no luck 3')",
        "pod-7",
        "pod-7",
    )
    assert queue.dlq.get(sent) == dead_letter


def test_dead_letters_are_redriven_or_purged(face):
    """By id, by a condition, or all; a missing one is an error only if it is named."""
    queue = face.connect().queue("jobs")
    queue.publish_many(range(5))
    with queue.consumer(prefetch=5) as consumer:
        for message in consumer.receive(5, timeout=5):
            message.reject(f"reason {message.body % 2}")
    dead_letters = queue.dlq.list()
    assert [dead_letter.body for dead_letter in dead_letters] == [0, 1, 2, 3, 4]
    assert [dead_letter.body for dead_letter in queue.dlq.list(2, after=dead_letters[1].position)] == [2, 3]

    assert queue.dlq.redrive([dead_letters[0].id, "nothing"]) == 1
    assert (
        queue.dlq.redrive(where=lambda dead_letter: dead_letter.reason == "reason 1", rate=1000, reset_attempts=False)
        == 2
    )
    assert queue.dlq.purge([dead_letters[2].id]) == 1
    assert queue.dlq.purge(before=0) == 0
    assert queue.dlq.redrive() == 1
    assert queue.dlq.purge() == 0
    with queue.consumer(prefetch=5) as consumer:
        messages = consumer.receive(5, timeout=5)
        assert [(each.body, each.attempt) for each in messages] == [(0, 1), (1, 2), (3, 2), (4, 1)]
        for each in messages:
            each.ack()
    with pytest.raises(NotFound):
        queue.dlq.get(dead_letters[0].id)
    assert queue.check()


@pytest.mark.acceptance("A1-9")
def test_dead_letters_beyond_the_cap_are_counted(face):
    """The oldest are dropped, and a counter shows how many."""
    queue = face.connect().queue("jobs", dead_max=10)
    queue.publish_many(range(30))
    with queue.consumer(prefetch=30) as consumer:
        for message in consumer.receive(30, timeout=5):
            message.reject("r")
    assert [dead_letter.body for dead_letter in queue.dlq.list()] == list(range(20, 30))
    assert queue.stats().counts["evicted"] == 20


def test_a_finished_message_cannot_be_finished_again(face):
    """A mistake in the program; it does the message no harm."""
    queue = face.connect().queue("jobs")
    queue.publish("x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(timeout=5)
        message.ack()
        for again in (message.ack, message.retry, message.release, lambda: message.reject("r"), message.verify):
            with pytest.raises(NotOwner, match=r"message .* of queue 'jobs' was already acked"):
                again()
        assert message.finished
        with pytest.raises(LeaseLost, match="was already acked"):
            message.check()
        with pytest.raises(NotOwner, match=r"message .* of queue 'jobs' was already acked"), message:
            pytest.fail("entered a finished message")
    assert queue.stats().counts["acked"] == 1


@pytest.mark.parametrize(("action", "word"), [("retry", "retried"), ("release", "released"), ("reject", "rejected")])
def test_the_error_for_a_finished_message_names_its_outcome(face, action, word):
    """The program finds the call that finished the message by this word."""
    queue = face.connect().queue("jobs")
    message_id = queue.publish("x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(timeout=5)
        getattr(message, action)(**({"reason": "r"} if action == "reject" else {"delay": 60}))
        with pytest.raises(NotOwner) as refusal:
            message.ack()
    assert str(refusal.value) == f"message {message_id} of queue 'jobs' was already {word}"


def test_a_consumer_that_leaves_requeues_its_messages(face):
    """No attempt is used, and others get them at once."""
    queue = face.connect().queue("jobs")
    queue.publish_many(range(3))
    with queue.consumer(prefetch=3) as consumer:
        assert len(consumer.receive(2, timeout=5)) == 2
    assert [consumer.label for consumer in queue.consumers()] == []
    with queue.consumer(prefetch=3) as consumer:
        assert [message.attempt for message in consumer.receive(3, timeout=0)] == [1, 1, 1]
    assert queue.stats().ready == 3


@pytest.mark.acceptance("A1-13")
def test_two_consumers_of_one_name_never_harm_each_other(face):
    """The name is for people; each consumer has a session of its own."""
    queue = face.connect().queue("jobs")
    queue.publish_many(range(2))
    with queue.consumer("pod") as one, face.connect().queue("jobs").consumer("pod") as other:
        (first,), (second,) = one.receive(timeout=5), other.receive(timeout=5)
        assert [(each.label, each.in_flight) for each in queue.consumers()] == [("pod", 1), ("pod", 1)]
        first.ack()
        second.verify()
        second.ack()


def test_a_delayed_message_comes_when_it_is_due_and_not_before(face):
    """By the engine's clock; a waiting consumer needs no wake-up for it."""
    queue = face.connect().queue("jobs")
    began = time.monotonic()
    queue.publish("later", delay=0.4)
    assert queue.stats().delayed == 1
    with queue.consumer() as consumer:
        assert consumer.receive(timeout=0) == []
        (message,) = consumer.receive(timeout=20)
        message.ack()
    assert message.body == "later"
    assert 0.4 <= time.monotonic() - began < 4  # a waiting consumer rechecks after 5 seconds in any case


def test_a_dedup_key_publishes_once_in_its_window(timed):
    """Whichever client uses it; after the window the key is free."""
    ours, theirs = (timed.connect().queue("jobs", dedup_window=60) for _ in range(2))
    first = ours.publish(1, dedup_key="o-7")

    assert theirs.publish(2, dedup_key="o-7") == first
    timed.clock.advance(61)
    assert theirs.publish(3, dedup_key="o-7") != first
    assert take_all(ours) == [1, 3]


def test_a_full_queue_refuses_a_message_or_makes_its_producer_wait(face):
    """Nothing is trimmed; finished work makes room."""
    queue = face.connect().queue("jobs", bound=3)
    queue.publish_many([1, 2])
    with pytest.raises(QueueFull) as refusal:
        queue.publish_many([3, 4])
    assert (refusal.value.size, refusal.value.bound, refusal.value.sent) == (2, 3, ())
    assert str(refusal.value) == "queue 'jobs' is full: 2 of 3 messages"
    full = QueueFull("jobs", 1, 1, ("id",))
    assert str(full) == "queue 'jobs' is full: 1 of 1 message; 1 message was published before"
    queue.publish(3)
    waiting = face.start(queue.publish, 4, timeout=20)
    time.sleep(0.05)
    assert not waiting.done()
    assert take_all(queue) == [1, 2, 3]
    waiting.result()
    assert take_all(queue) == [4]


@pytest.mark.acceptance("A1-8", "C-21")
def test_a_message_that_cannot_be_decoded_becomes_a_dead_letter(face):
    """At the first delivery, with its bytes and the reason; the consumer goes on."""
    client = face.connect()
    raw, queue = client.queue("jobs", codec="bytes"), client.queue("jobs")
    raw.publish(b"{no json")
    raw.publish(b"\xff\xfe")
    queue.publish("good")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(timeout=5)
        message.ack()
    assert message.body == "good"
    assert [(dead_letter.body, dead_letter.reason) for dead_letter in queue.dlq.list()] == [
        (b"{no json", "unreadable"),
        (b"\xff\xfe", "unreadable"),
    ]
    assert queue.check()


@pytest.mark.acceptance("A1-28")
def test_bad_input_is_refused_before_anything_is_sent(face):
    """With the setting and the rule that it breaks."""
    client = face.connect()
    wire = face.wire(client)
    queue = client.queue("jobs")
    refused = [
        lambda: client.queue("jobs", max_attempts=0),
        lambda: client.queue("jobs", backoff=3),
        lambda: client.queue("jobs", backoff=Backoff(10, 2, 5)),
        lambda: client.queue("jobs", bound=0),
        lambda: client.queue("jobs", codec="xml"),
        lambda: client.queue("jobs", ttl=0),
        lambda: queue.publish(object()),
        lambda: queue.publish("x" * (1 << 20)),
        lambda: queue.publish(float("nan")),
        lambda: queue.publish("x", delay=-1),
        lambda: queue.publish("x", headers={"a": 1}),
        lambda: queue.publish("x", headers={"a": "x" * 9000}),
        lambda: queue.publish("x", dedup_key=""),
        lambda: queue.publish_many("text"),
        lambda: queue.publish_many(3),
        lambda: queue.consumer(prefetch=0),
        lambda: queue.consumer(name=""),
        lambda: queue.worker(None),
        lambda: queue.worker(print, concurrency=0),
        lambda: queue.worker(print, on_loss="explode"),
        lambda: queue.peek("nowhere"),
        lambda: queue.dlq.list(-1),
        lambda: queue.dlq.redrive("one"),
        lambda: queue.dlq.redrive(rate=0),
        lambda: queue.dlq.redrive(rate=float("inf")),
        lambda: queue.dlq.redrive(5),
        lambda: queue.dlq.redrive(where="no customer"),
        lambda: queue.dlq.purge(where="no customer"),
    ]
    for call in refused:
        with pytest.raises((InvalidConfig, ValueError)):
            call()
    assert wire.commands() == []


def test_peek_leaves_messages_where_they_are(face):
    """In each place, without receiving them."""
    queue = face.connect().queue("jobs")
    queue.publish_many(["a", "b"])
    queue.publish("c", delay=60)
    with queue.consumer() as consumer:
        consumer.receive(timeout=5)
        assert [seen.body for seen in queue.peek()] == ["b"]
        (flying,) = queue.peek("in_flight")
        assert (flying.body, flying.consumer) == ("a", queue.consumers()[0].token)
        (later,) = queue.peek("delayed")
        assert later.body == "c"
        assert 0 < later.due <= 60
    assert queue.stats().oldest is not None


def test_a_publish_whose_answer_was_lost_publishes_once(face):
    """It is resent with the same token."""
    client = face.connect()
    queue = client.queue("jobs")
    wire = face.wire(client)
    wire.lose_reply(Publish, 1)
    sent = queue.publish("x")

    assert len(wire.commands(Publish)) == 2
    assert [seen.id for seen in queue.peek()] == [sent]


def test_a_receive_whose_answer_was_lost_loses_nothing(face):
    """The same consumer finds the messages; it is not declared dead, and no attempt is used."""
    client = face.connect()
    queue = client.queue("jobs")
    queue.publish_many(range(3))
    with queue.consumer(prefetch=2) as consumer:
        wire = face.wire(client)
        wire.lose_reply(Receive, 1)
        got = consumer.receive(2, timeout=20)
        assert [(each.body, each.attempt) for each in got] == [(0, 1), (1, 1)]
        for each in got:
            each.ack()
        assert [each.body for each in consumer.receive(2, timeout=5)] == [2]


def test_an_outcome_whose_answer_was_lost_is_resent_and_counts_once(face):
    """In a session that was never in doubt, the first copy has finished the missing entries."""
    client = face.connect()
    queue = client.queue("jobs")
    queue.publish_many(range(2))
    with queue.consumer(prefetch=2) as consumer:
        done, failed = consumer.receive(2, timeout=5)
        wire = face.wire(client)
        wire.lose_reply(RecordOutcomes, 1)
        done.ack()
        wire.lose_reply(RecordOutcomes, 1)
        failed.retry(0)
        assert [each.attempt for each in consumer.receive(2, timeout=5)] == [2]
    assert queue.stats().counts["acked"] == 1


def test_one_heartbeat_covers_any_number_of_messages(timed):
    """It renews the consumer's session, not each message."""
    client = timed.connect()
    queue = client.queue("jobs", ttl=30)
    queue.publish_many(range(50))
    with queue.consumer(prefetch=50) as consumer:
        messages = consumer.receive(50, timeout=5)
        wire = timed.wire(client)
        for _ in range(12):
            timed.clock.advance(5)
            time.sleep(0.02)
        eventually(lambda: len(wire.commands(ConsumerHeartbeat)) >= 4, what="beats")
        assert len(wire.commands(ConsumerHeartbeat)) <= 12
        messages[-1].check()
        assert not messages[-1].lost
    assert wire.commands((Join,)) == []
    assert len(wire.commands(Leave)) == 1


def test_one_body_in_place_of_a_list_is_refused_without_being_shown(face):
    """A text is a list of characters and a dictionary one of keys: the mistake must not pass, nor show the payload."""
    queue = face.connect().queue("jobs")
    for body in ("password hunter2", {"pin": "hunter2"}, b"hunter2"):
        with pytest.raises(InvalidConfig, match="list of bodies") as refusal:
            queue.publish_many(body)
        assert "hunter2" not in str(refusal.value)
