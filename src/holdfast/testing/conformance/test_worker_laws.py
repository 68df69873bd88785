"""Workers: a handler for every message, several at a time, and an end that loses nothing."""

import threading
import time

import pytest

from holdfast import Backoff, Closed, InvalidConfig, LeaseLost, Reject, Release, Retry
from holdfast.commands.queue import Join, Receive, RecordOutcomes
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import LOOP, together
from holdfast.testing.conformance.faults import Fault, Interrupted

pytestmark = pytest.mark.capability("queues")

NOW = Backoff(0, 1, 0, 0)


class Handler:
    """Records its messages, and how many calls run at the same time."""

    def __init__(self, gate=None, fails=None):
        self.seen, self.now, self.most = [], 0, 0
        self.gate, self.fails = gate, fails or {}
        self._guard = threading.Lock()

    def __call__(self, message):
        with self._guard:
            self.seen.append(message.body)
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            if self.gate is not None:
                assert self.gate.wait(20)
            errors = self.fails.get(message.body)
            if errors:
                raise errors.pop(0)
        finally:
            with self._guard:
                self.now -= 1


@pytest.mark.large
def test_every_message_is_handled_and_acked(face):
    """With as many handlers as the concurrency allows, and no more."""
    queue = face.connect().queue("jobs")
    queue.publish_many(range(40))
    handler = Handler()
    queue.worker(handler, concurrency=4).run_until_idle()

    assert sorted(handler.seen) == list(range(40))
    assert handler.most <= 4
    assert queue.stats()[1:6] == (0, 0, 0, 0, 0)
    assert queue.stats().counts["acked"] == 40
    assert queue.consumers() == []


def test_many_messages_need_few_commands(face):
    """Receives and outcomes go in batches: that makes workers fast."""
    client = face.connect()
    queue = client.queue("jobs")
    queue.publish_many(range(200))
    wire = face.wire(client)
    queue.worker(Handler(), concurrency=50).run_until_idle()

    assert len(wire.commands(Receive)) <= 60
    assert len(wire.commands(RecordOutcomes)) <= 200
    assert queue.stats().counts["acked"] == 200


def test_the_error_of_a_handler_is_the_outcome_of_its_message(face):
    """`Retry`, `Release`, `Reject` and other errors alike; the worker goes on."""
    queue = face.connect().queue("jobs", max_attempts=2, backoff=NOW)
    queue.publish_many(["fine", "twice", "never", "useless", "later"])
    handler = Handler(
        fails={
            "twice": [ValueError("once")],
            "never": [ValueError("a"), Retry(0, "b")],
            "useless": [Reject("of no use")],
            "later": [Release(0.1)],
        }
    )
    worker = queue.worker(handler, concurrency=2)
    running = face.start(worker.run)
    eventually(lambda: queue.stats().counts.get("acked") == 3, what="three that are done")
    worker.stop()
    running.result()

    assert sorted(handler.seen) == ["fine", "later", "later", "never", "never", "twice", "twice", "useless"]
    dead_letters = {
        dead_letter.body: (dead_letter.reason, dead_letter.error, dead_letter.attempts)
        for dead_letter in queue.dlq.list()
    }
    assert dead_letters == {"never": ("attempts used up", "b", 2), "useless": ("of no use", "of no use", 1)}


@pytest.mark.acceptance("A1-20")
def test_a_stop_releases_what_has_not_started_and_lets_the_rest_finish(face):
    """Neither uses an attempt; the next worker gets the released messages at once."""
    queue = face.connect().queue("jobs")
    queue.publish_many(range(10))
    gate = threading.Event()
    handler = Handler(gate)
    worker = queue.worker(handler, concurrency=2, prefetch=5)
    running = face.start(worker.run)
    eventually(lambda: handler.now == 2 and queue.stats().in_flight == 7, what="two at work, five taken ahead")
    worker.stop()
    eventually(lambda: queue.stats().ready == 8, what="five that were given back")
    assert not running.done()
    gate.set()
    running.result()

    now = queue.stats()
    assert (now.ready, now.in_flight, now.consumers, now.counts["acked"]) == (8, 0, 0, 2)
    assert [seen.attempts for seen in queue.peek()] == [0] * 8
    assert queue.check()


@pytest.mark.acceptance("A1-19")
def test_a_second_stop_does_not_wait_for_handlers(face):
    """Their messages are requeued; a handler that goes on learns that its message is lost."""
    queue = face.connect().queue("jobs")
    queue.publish("x")
    gate = threading.Event()
    handler = Handler(gate)
    worker = queue.worker(handler, concurrency=1, grace=60)
    running = face.start(worker.run)
    eventually(lambda: handler.now == 1, what="a handler at work")
    worker.stop()
    worker.stop()
    running.result(20)
    assert (queue.stats().ready, queue.stats().consumers) == (1, 0)
    gate.set()
    eventually(lambda: handler.now == 0, what="the end of the handler")


def test_a_handler_that_outlives_its_worker_learns_that_its_message_is_lost(face):
    """Its thread cannot be ended: so every check must show that others may have the message."""
    queue = face.connect().queue("jobs")
    queue.publish("x")
    begun, heard = threading.Event(), []

    def handle(message):
        assert not message.lost
        begun.set()
        eventually(lambda: message.lost, 20, "word of the loss")
        with pytest.raises(LeaseLost):
            message.check()
        heard.append(message.body)

    worker = queue.worker(handle, concurrency=1, grace=0.1)
    running = face.start(worker.run)
    assert begun.wait(20)
    worker.stop()
    running.result(20)
    assert queue.stats().ready == 1
    eventually(lambda: heard, what="the end of the handler")


def test_a_worker_can_run_again_after_its_end(face):
    """A stop is for one run, not for the object."""
    queue = face.connect().queue("jobs")
    worker = queue.worker(Handler())
    for number in range(2):
        queue.publish(number)
        worker.run_until_idle()
    running = face.start(worker.run)
    queue.publish("last")
    eventually(lambda: queue.stats().counts["acked"] == 3, what="three that are done")
    worker.stop()
    running.result()
    queue.publish("after a stop")
    worker.run_until_idle()
    assert queue.stats().counts["acked"] == 4


def test_closing_the_client_stops_its_workers_and_waits_for_handlers(face):
    """As for every holder: started work finishes, and the rest is left for others."""
    client, other = face.connect(), face.connect()
    queue = client.queue("jobs")
    gate = threading.Event()
    handler = Handler(gate)
    running = face.start(queue.worker(handler, concurrency=1).run)
    waiting = face.start(client.queue("other").worker(Handler()).run)
    other.queue("jobs").publish_many([1, 2])
    eventually(lambda: handler.now == 1 and other.queue("other").stats().waiting == 1, what="a handler at work")
    closing = face.start(client.close)
    waiting.result(4)
    assert not closing.done()
    gate.set()
    running.result()
    assert closing.result() == ()
    now = other.queue("jobs").stats()
    assert (now.counts["acked"], now.ready, now.consumers) == (1, 1, 0)


def test_a_consumer_of_a_closed_client_raises(face):
    """It does not wait for messages that cannot come."""
    client = face.connect()
    with client.queue("jobs").consumer() as consumer:
        running = face.start(consumer.receive)
        eventually(lambda: client.queue("jobs").stats().waiting == 1, what="a consumer that waits")
        closing = face.start(client.close)
        with pytest.raises(Closed):
            running.result(4)
    assert closing.result() == ()


@pytest.mark.finding("L11")
@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
def test_finished_work_is_not_requeued_when_its_outcome_is_interrupted(face, heard):
    """A worker that is interrupted while it sends outcomes sends them again, and then leaves; none counts as lost."""
    events = []
    client = face.connect(observer=events.append)
    queue = client.queue("jobs")
    queue.publish("x")
    wire = face.wire(client)
    wire._faults.append(Fault(RecordOutcomes, 1, applied=heard, hangs=False, error=Interrupted()))
    with pytest.raises(Interrupted):
        queue.worker(Handler()).run_until_idle()

    now = queue.stats()
    assert (now.counts, now.ready) == ({"acked": 1, "published": 1, "received": 1}, 0)
    assert [event for event in events if event.kind == "lost"] == []


def test_a_block_that_was_interrupted_at_its_end_sends_its_outcome_again(face):
    """The consumer's block ends, too; it sends the interrupted outcome before it requeues the rest."""
    client = face.connect()
    queue = client.queue("jobs")
    queue.publish("x")
    wire = face.wire(client)
    wire.fail(RecordOutcomes, 1, error=Interrupted())
    with pytest.raises(Interrupted), queue.consumer() as consumer:
        (message,) = consumer.receive(timeout=5)
        with message:
            pass
    assert queue.stats().counts == {"acked": 1, "published": 1, "received": 1}


@pytest.mark.finding("L11")
def test_an_ack_whose_answer_was_lost_is_not_counted_as_lost(face):
    """The second copy finds no message, because the first one has acked it."""
    client = face.connect()
    queue = client.queue("jobs")
    queue.publish("x")
    wire = face.wire(client)
    with queue.consumer() as consumer:
        (message,) = consumer.receive(timeout=5)
        wire.lose_reply(RecordOutcomes, 1)
        message.ack()
    assert queue.stats().counts == {"acked": 1, "published": 1, "received": 1}


def test_an_idle_worker_sends_almost_nothing(timed):
    """A wait costs a recheck now and then, a heartbeat, and no more."""
    client = timed.connect()
    queue = client.queue("jobs")
    worker = queue.worker(Handler())
    running = timed.start(worker.run)
    eventually(lambda: queue.stats().waiting == 1, what="a worker that waits")
    wire = timed.wire(client)
    for _ in range(12):  # every move of a clock wakes its sleepers
        timed.clock.advance(5)
        time.sleep(0.03)
    assert len(wire.commands()) <= 60
    worker.stop()
    running.result()


@together
def test_a_poison_message_is_found_and_its_neighbours_survive(face):
    """After two deaths all are in quarantine.

    Each is delivered alone, and only the one that kills becomes a dead letter.
    """
    queue = face.connect().queue("jobs", ttl=0.5, grace=0.1, max_attempts=2)
    queue.publish_many(["poison", *range(5)])
    for time_ in range(2):
        peer = face.peer()
        peer.say(Join("jobs", f"dead{time_}", "", f"dead{time_}", 500))
        with queue.consumer("watching"):
            assert len(peer.say(Receive("jobs", f"dead{time_}", 10)).deliveries) == 6
            eventually(lambda: queue.stats().in_flight == 0, timeout=20, what="a death that is found")
    assert queue.stats().quarantined == 6
    seen = []

    queue.publish_many(["other"] * 20)

    def alone(message):
        time.sleep(0.02)
        seen.append((message.body, message.quarantined, message.attempt, worker.running))
        if message.body == "poison":
            raise Reject("it was this one")

    worker = queue.worker(alone, concurrency=8)
    worker.run_until_idle()
    quarantined = [each for each in seen if each[1]]
    assert {str(body) for body, *_ in quarantined} == {"poison", *map(str, range(5))}
    assert {(attempt, running) for _, _, attempt, running in quarantined} == {(1, 1)}
    assert len(seen) == 26
    assert [dead_letter.body for dead_letter in queue.dlq.list()] == ["poison"]


def test_a_handler_that_blocks_the_event_loop_runs_once(face):
    """The keeper is a thread of its own: a blocked loop does not end the consumer's session."""
    if face.kind == "blocking":
        return
    queue = face.connect()._thing.queue("jobs", ttl=0.5, grace=0)
    theirs = face.connect().queue("jobs", ttl=0.5, grace=0)
    runs = []

    async def blocks(message):
        runs.append(message.attempt)
        time.sleep(1.5)  # noqa: ASYNC251 - that is the point

    async def program():
        await queue.publish("x")
        await queue.worker(blocks).run_until_idle()

    with theirs.consumer():  # so that another client checks for dead consumers
        LOOP.wait_for(program())
    assert runs == [1]
    assert theirs.stats().counts == {"acked": 1, "published": 1, "received": 1}


def test_the_blocking_face_refuses_a_coroutine_function_as_handler(face):
    """Before any message is received."""
    if face.kind == "asyncio":
        return

    async def handler(message):
        return message

    with pytest.raises((InvalidConfig, TypeError)):
        face.connect().queue("jobs").worker(handler)


def test_the_asyncio_face_runs_plain_handlers_in_threads_and_cancels_tasks(face):
    """A blocking handler does not stop the loop; an awaited one ends when its run is cancelled."""
    if face.kind == "blocking":
        return
    import asyncio

    client = face.connect()
    queue = client._thing.queue("jobs")
    begun, ended = [], []

    async def program():
        await queue.publish_many([1, 2])
        await queue.worker(lambda message: begun.append(threading.current_thread().name)).run_until_idle()
        await queue.publish(3)

        started = asyncio.Event()

        async def endless(message):
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(message.body)

        running = asyncio.ensure_future(queue.worker(endless).run())
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return await queue.stats()

    now = LOOP.wait_for(program())
    assert all(name.startswith("holdfast-handler") for name in begun)
    assert len(begun) == 2
    assert ended == [3]
    assert (now.ready, now.in_flight, now.consumers) == (1, 0, 0)
