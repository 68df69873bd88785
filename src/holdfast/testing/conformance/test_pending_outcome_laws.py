"""Outcomes that have not reached the engine yet: finished work is not requeued, whatever ends in the meantime."""

import subprocess
import sys
import threading

import pytest

from holdfast import Closed, InvalidConfig, LeaseLost, NotOwner, Reject, Retry, Unavailable
from holdfast.commands.queue import (
    BATCH_MAX,
    ConsumerHeartbeat,
    Leave,
    Publish,
    Purge,
    Receive,
    RecordOutcomes,
    Redrive,
)
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import passing, together

pytestmark = pytest.mark.capability("queues")


@together
def test_the_leave_of_a_consumer_does_not_overtake_its_outcomes(face):
    """The keeper keeps sending an ack that was not confirmed; then the engine comes back just as the block ends."""
    client, other = face.connect(), face.connect().queue("jobs")
    queue = client.queue("jobs")
    queue.publish_many(["done", "not begun"])
    wire = face.wire(client)
    with queue.consumer(prefetch=2) as consumer:
        done, _ = consumer.receive(2, timeout=5)
        wire.fail(RecordOutcomes)
        with pytest.raises(Unavailable):
            done.ack()
        assert other.stats().in_flight == 2
    assert wire.commands(Leave) == []
    wire.heal()
    eventually(lambda: other.stats().consumers == 0, what="an end that was told after all")

    assert [seen.body for seen in other.peek()] == ["not begun"]
    assert other.stats().counts == {"acked": 1, "published": 2, "released": 1, "received": 2}


OUTCOMES = {
    "ack": lambda message: message.ack(),
    "retry": lambda message: message.retry(),
    "release": lambda message: message.release(),
    "reject": lambda message: message.reject("no use"),
}


def left(message):
    """Leave the block of a message without an error."""
    with message:
        pass


@pytest.mark.finding("T1")
@together
def test_no_outcome_succeeds_after_another_consumer_has_acked_the_message(face):
    """A consumer is cut off, and another takes its messages over: every method says so, and so does the block's end."""
    client, other = face.connect(), face.connect().queue("jobs", ttl=1, grace=0)
    queue = client.queue("jobs", ttl=1, grace=0)
    ways = [*OUTCOMES.values(), left]
    queue.publish_many(range(len(ways)))
    wire = face.wire(client)
    with queue.consumer(prefetch=len(ways)) as consumer:
        messages = consumer.receive(len(ways), timeout=5)
        assert len(messages) == len(ways)
        wire.fail()
        with other.consumer(prefetch=len(ways)) as successor:
            for _ in ways:  # one by one, because they may come from quarantine
                (taken,) = successor.receive(timeout=30)
                taken.ack()
        ends = [face.start(way, message) for way, message in zip(ways, messages, strict=True)]
        for end, message in zip(ends, messages, strict=True):
            assert isinstance(end.error(), LeaseLost)
            assert message.lost
            assert not message.finished
        wire.heal()
    assert other.stats().counts["acked"] == len(ways)
    assert other.stats().dead == 0


@pytest.mark.finding("T1")
@together
def test_an_outcome_that_the_engine_did_not_confirm_is_unknown_until_it_does(face):
    """The message is not lost: its session can be trusted. The keeper keeps sending; a repeat gets the answer."""
    client = face.connect()
    queue, other = client.queue("jobs"), face.connect().queue("jobs")
    queue.publish_many(list(OUTCOMES))
    wire = face.wire(client)
    with queue.consumer(prefetch=len(OUTCOMES)) as consumer:
        messages = consumer.receive(len(OUTCOMES), timeout=5)
        wire.fail(RecordOutcomes)
        ends = [face.start(OUTCOMES[message.body], message) for message in messages]
        for end, message in zip(ends, messages, strict=True):
            error = end.error()
            assert isinstance(error, Unavailable)
            assert (error.outcome, error.retryable) == ("unknown", False)
            assert "may have applied" in str(error)
            assert not message.lost
            assert not message.finished
            with pytest.raises(NotOwner, match="has not confirmed"):  # another outcome would contradict the first
                OUTCOMES["ack" if message.body != "ack" else "retry"](message)
        assert other.stats().in_flight == len(OUTCOMES)
        wire.heal()
        OUTCOMES["ack"](messages[0])
        for message in messages:
            eventually(lambda message=message: message.finished, what="the answer to the keeper")
            with pytest.raises(NotOwner, match="already"):
                message.ack()
    counts = other.stats().counts
    assert [counts[each] for each in ("acked", "retried", "released", "dead_lettered")] == [1, 1, 1, 1]
    assert "lost" not in counts


@pytest.mark.finding("T1")
@together
def test_a_handler_whose_ack_was_not_confirmed_fails_no_attempt(face):
    """The worker must not contradict an ack that the keeper still sends. The observer hears of a refusal later."""
    events = []
    client, other = face.connect(observer=events.append), face.connect().queue("jobs")
    other.publish_many(["acked", "left to the worker"])
    wire = face.wire(client)
    errors = []

    def handle(message):
        wire.fail(RecordOutcomes)
        if message.body == "acked":
            try:
                message.ack()
            except Unavailable as error:
                errors.append(error.outcome)
                raise

    worker = client.queue("jobs").worker(handle, concurrency=2)
    running = face.start(worker.run)
    eventually(lambda: len([each for each in events if each.kind == "release_delayed"]) == 2, 20, "two late outcomes")
    eventually(lambda: errors == ["unknown"], what="the handler gets its error")
    wire.heal()
    eventually(lambda: other.stats().counts.get("acked") == 2, what="both acks")
    worker.stop()
    running.result(30)
    assert other.stats().counts == {"acked": 2, "published": 2, "received": 2}
    assert [each.kind for each in events if each.kind in ("lost", "handler_failed")] == []


@pytest.mark.finding("T1")
@together
def test_an_error_of_the_block_is_not_replaced_by_an_unconfirmed_outcome(face):
    """It gets a note about it; `Retry` and its kind are no errors of the block, so the unknown outcome is raised."""
    client = face.connect()
    queue = client.queue("jobs")
    queue.publish_many(range(2))
    wire = face.wire(client)

    def leave(message, error):
        with message:
            raise error

    with queue.consumer(prefetch=2) as consumer:
        first, second = consumer.receive(2, timeout=5)
        wire.fail(RecordOutcomes)
        failing, retrying = face.start(leave, first, KeyError("x")), face.start(leave, second, Retry())
        assert isinstance(failing.error(), KeyError)
        assert "may have applied" in "".join(failing.error().__notes__)
        assert isinstance(retrying.error(), Unavailable)
        wire.heal()


@pytest.mark.finding("L11")
@together
def test_an_ack_whose_answer_was_lost_is_not_counted_as_lost(face):
    """The second copy finds no message, because the first one recorded the ack."""
    client = face.connect()
    queue = client.queue("jobs")
    queue.publish_many(range(3))
    wire = face.wire(client)
    with queue.consumer(prefetch=3) as consumer:
        for message in consumer.receive(3, timeout=5):
            wire.lose_reply(RecordOutcomes, 1)
            message.ack()
    assert len(wire.commands(RecordOutcomes)) == 6
    assert queue.stats().counts == {"acked": 3, "published": 3, "received": 3}


@together
def test_a_consumer_with_many_messages_requeues_them_in_steps(face):
    """By itself, or by the keeper if the engine was away when the block ended. No step has more than a batch."""
    client, other, count = face.connect(), face.connect().queue("jobs"), 2 * BATCH_MAX + 10
    other.publish_many(range(count))
    for trouble in (False, True):
        wire = face.wire(client)
        with client.queue("jobs").consumer(prefetch=count) as consumer:
            while consumer.in_flight < count:
                assert consumer.receive(count, timeout=5)
            if trouble:
                wire.fail()
        if trouble:
            assert other.stats().in_flight == count
            wire.heal()
        eventually(lambda: other.stats().consumers == 0, what="an end that was told after all")
        assert sorted(seen.body for seen in other.peek(limit=count)) == list(range(count))
        assert len(wire.commands(Leave)) >= 3

    assert other.stats().counts == {"published": count, "released": 2 * count, "received": 2 * count}
    assert {(seen.attempts, seen.crashes) for seen in other.peek(limit=count)} == {(0, 0)}
    assert other.check()


@together
def test_a_closed_client_still_requeues_all_its_messages(face):
    """Its keeper ends with the last step, and not with the first one."""
    client, other, count = face.connect(), face.connect().queue("jobs"), 2 * BATCH_MAX + 10
    other.publish_many(range(count))
    wire = face.wire(client)
    with client.queue("jobs").consumer(prefetch=count) as consumer:
        while consumer.in_flight < count:
            assert consumer.receive(count, timeout=5)
        wire.fail(Leave)
    wire.heal()
    client.close(timeout=0)

    assert other.stats().counts == {"published": count, "released": count, "received": count}
    assert other.stats().consumers == 0


@together
def test_a_worker_that_stops_in_an_outage_requeues_no_finished_work(face):
    """A deployment while the engine is away: all finished work stays finished."""
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


def test_a_message_that_arrives_while_its_worker_stops_is_released(face):
    """T26: the receive was on its way. No handler starts, and the next worker gets the message."""
    client, other = face.connect(), face.connect().queue("jobs")
    other.publish_many(range(3))
    there, go = face.wire(client).hold(Receive)
    begun = []
    worker = client.queue("jobs").worker(begun.append, concurrency=2)
    running = face.start(worker.run)
    assert there.wait(20)
    worker.stop()
    go.set()
    running.result()

    assert begun == []
    assert other.stats().counts == {"published": 3, "released": 2, "received": 2}
    assert [seen.attempts for seen in other.peek()] == [0] * 3
    assert other.consumers() == []


def test_prefetched_messages_are_not_returned_while_the_session_is_in_doubt(timed):
    """Others may have them by now. If the engine was only away, they are returned after all."""
    client = timed.connect()
    queue, successor = client.queue("jobs", ttl=20, grace=0), timed.connect().queue("jobs", ttl=20, grace=0)
    queue.publish_many(range(3))
    wire = timed.wire(client)
    with queue.consumer(prefetch=3) as consumer:
        (first,) = consumer.receive(timeout=5)
        wire.fail(ConsumerHeartbeat)
        timed.clock.advance(100)
        assert consumer.receive(timeout=0) == []
        wire.heal()
        eventually(lambda: timed.clock.advance(0.02) or not first.lost, what="the end of a doubt")
        (second,) = consumer.receive(timeout=0)
        assert second.body == 1

        wire.fail(ConsumerHeartbeat)
        with passing(timed.clock), successor.consumer(prefetch=3) as other:
            taken = other.receive(3, timeout=600)
            assert [each.body for each in taken] == [0, 1, 2]
            assert consumer.receive(timeout=0) == []
            successor.publish("next")
            wire.heal()
            assert [each.body for each in consumer.receive(timeout=600)] == ["next"]
        with pytest.raises(LeaseLost):
            first.ack()


@together
def test_a_closed_client_returns_no_more_messages(face):
    """Not even prefetched ones. And `receive(0)` is refused."""
    client = face.connect()
    queue = client.queue("jobs")
    queue.publish_many(range(2))
    with queue.consumer(prefetch=2) as consumer:
        for most in (0, -1, None, True):
            with pytest.raises(InvalidConfig, match="most"):
                consumer.receive(most)
        assert queue.stats().in_flight == 0
        consumer.receive(timeout=5)
        client.close(timeout=0)
        with pytest.raises(Closed):
            consumer.receive(timeout=5)


FORKED = """
import os, sys, holdfast
queue = holdfast.connect(sys.argv[1]).queue("jobs")
queue.publish(1)
with queue.consumer() as consumer:
    (message,) = consumer.receive()
    with message:
        child = os.fork()
        if not child:
            try:
                message.ack()
            except holdfast.LeaseLost as lost:
                sys.exit(int(lost.reason == "forked"))
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        assert queue.stats().in_flight == 1
print(queue.stats().counts)
"""


# The child leaves by an exit, through the block; before that it receives messages of its own.
FORKED_WITH_MANY = """
import os, sys, holdfast
queue = holdfast.connect(sys.argv[1]).queue("jobs")
queue.publish_many(range(300))
with queue.consumer(prefetch=299) as consumer:
    many = []
    while len(many) < 299:
        many += consumer.receive(299)
    child = os.fork()
    if not child:
        (message,) = consumer.receive(timeout=20)
        sys.exit(message.body % 256)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 299 % 256
    print(queue.stats().ready, queue.stats().in_flight, len(queue.consumers()))
    for message in many:
        message.ack()
print(queue.stats().counts)
"""
FORKS = {
    "one": (FORKED, "{'acked': 1, 'published': 1, 'received': 1}\n"),
    "many": (FORKED_WITH_MANY, "1 299 1\n{'acked': 299, 'published': 300, 'received': 300, 'released': 1}\n"),
}


@pytest.mark.parametrize("held", FORKS)
def test_a_forked_child_does_not_finish_its_parents_message(tmp_path, held):
    """Neither by an outcome nor by the end of the block, which comes as it exits."""
    program, reported = FORKS[held]
    ended = subprocess.run(
        [sys.executable, "-c", program, f"sqlite:///{tmp_path}/jobs.db"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout == reported, ended.stderr


def test_many_messages_go_through_a_small_bound(face):
    """As many as there is room for at a time; a producer is not kept out because it asks for more than can ever fit."""
    queue = face.connect().queue("jobs", bound=5)
    sending = face.start(queue.publish_many, range(12), timeout=20)
    worker = queue.worker(lambda _message: None, concurrency=2)
    running = face.start(worker.run)
    assert len(sending.result(30)) == 12
    eventually(lambda: queue.stats().counts.get("acked") == 12, what="all of them")
    worker.stop()
    running.result()


@together
def test_an_outage_during_publish_many_names_what_was_published(face):
    """A repeat of the whole call would publish those twice."""
    client = face.connect()
    queue = client.queue("jobs")
    wire = face.wire(client)
    wire.let_pass(Publish, 2)
    wire.fail(Publish)
    with pytest.raises(Unavailable, match="256 messages were published before") as cut:
        queue.publish_many(range(300))

    assert (len(cut.value.sent), cut.value.retryable) == (256, False)
    assert [seen.id for seen in queue.peek(limit=300)] == list(cut.value.sent)


def dead_lettered(queue, count):
    """Return the ids of that many new dead letters."""
    queue.publish_many(range(count))
    with queue.consumer(prefetch=count) as consumer:
        for each in consumer.receive(count, timeout=5):
            each.reject("no use")
    return [dead_letter.id for dead_letter in queue.dlq.list()]


def test_dead_letters_whose_answer_was_lost_are_counted_once(face):
    """The second copy of the command gets the answer of the first."""
    client = face.connect()
    queue = client.queue("jobs")
    wire = face.wire(client)
    ids = dead_lettered(queue, 4)
    wire.lose_reply(Redrive, 1)
    assert queue.dlq.redrive(ids[:2]) == 2
    wire.lose_reply(Purge, 1)
    assert queue.dlq.purge() == 2
    assert (len(wire.commands(Redrive)), len(wire.commands(Purge))) == (2, 2)
    assert queue.stats()[1:6] == (2, 0, 0, 0, 0)
    assert queue.stats().counts["redriven"] == queue.stats().counts["purged"] == 2


@together
def test_a_redrive_of_all_takes_the_dead_letters_of_its_beginning(face):
    """Messages that die again in the meantime are not redriven.

    With a worker that rejects them, that would never end.
    """
    queue = face.connect().queue("jobs", max_attempts=1)
    dead_lettered(queue, 12)

    def handle(_message):
        raise Reject("still no use")

    worker = queue.worker(handle)
    running = face.start(worker.run)
    assert face.start(queue.dlq.redrive, rate=6).result(30) == 12
    eventually(lambda: queue.stats().dead == 12, what="dead letters again")
    worker.stop()
    running.result()
    assert queue.stats().counts["redriven"] == 12
