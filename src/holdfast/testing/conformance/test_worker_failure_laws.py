"""Handlers that end in unusual ways, and sessions that come and go: the worker goes on."""

import asyncio
import sys
import threading

import pytest

import holdfast
from holdfast import Backoff, InvalidConfig, Release, Retry
from holdfast.commands.queue import ConsumerHeartbeat, Join, Receive
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import passing, together

pytestmark = pytest.mark.capability("queues")

SOON = Backoff(0.01, 1, 0.01, 0)


class Unshowable(Exception):
    def __repr__(self):
        raise RuntimeError("no words for it")


class Wordless(Retry):
    def __init__(self):
        pass


def _raise(error):
    raise error


ENDS = {
    "a negative delay": lambda: _raise(Retry(-1)),
    "a delay that is text": lambda: _raise(Release("later")),
    "a word without its delay": lambda: _raise(Wordless()),
    "an error that cannot be shown": lambda: _raise(Unshowable()),
    "a cancellation of its own": lambda: _raise(asyncio.CancelledError()),
}


@together
def test_however_a_handler_ends_its_message_gets_an_outcome_and_its_slot_is_free(face):
    """Each end is a failed attempt: no message is retried for ever, and none stops the worker."""
    queue = face.connect().queue("jobs", max_attempts=2, backoff=SOON)
    queue.publish_many([*ENDS, "good"])
    done = []

    def handle(message):
        ENDS.get(message.body, lambda: None)()
        done.append(message.body)

    worker = queue.worker(handle, concurrency=1, grace=1)
    running = face.start(worker.run)
    eventually(lambda: queue.stats().dead == len(ENDS), 30, "dead letters of all of them")
    worker.stop()
    running.result()

    dead_letters = queue.dlq.list()
    assert {dead_letter.body for dead_letter in dead_letters} == set(ENDS)
    assert {(dead_letter.attempts, dead_letter.reason, bool(dead_letter.error)) for dead_letter in dead_letters} == {
        (2, "attempts used up", True)
    }
    assert done == ["good"]


def test_a_handler_that_exits_has_failed():
    """Its thread belongs to the worker, and `SystemExit` ends only that call."""
    client = holdfast.connect("memory://")
    queue = client.queue("jobs of exiting handlers", max_attempts=2, backoff=SOON)
    queue.publish(3)
    worker = queue.worker(lambda message: sys.exit(message.body), concurrency=1)
    running = threading.Thread(target=worker.run)
    running.start()
    eventually(lambda: queue.stats().dead == 1, what="a dead letter")
    worker.stop()
    running.join(20)
    assert queue.dlq.list()[0].error == "SystemExit(3)"
    assert queue.stats().counts["received"] == 2
    client.close()


EXITS = {"exit": lambda: sys.exit(3), "interrupt": lambda: _raise(KeyboardInterrupt("by hand"))}


@pytest.mark.finding("T5")
@pytest.mark.parametrize("is_coroutine", [True, False], ids=["coroutine", "plain function"])
def test_a_coroutine_that_exits_has_failed(is_coroutine):
    """A task that raises `SystemExit` would end the event loop, and every worker in it."""

    async def main():
        client = await holdfast.aio.connect(f"memory://exits of a coroutine {is_coroutine}")
        queue = client.queue("jobs of exiting coroutines", max_attempts=2, backoff=SOON)
        await queue.publish_many([*EXITS, "good"])
        done = []

        def handle(message):
            EXITS.get(message.body, lambda: None)()
            done.append(message.body)

        async def handle_in_loop(message):
            await asyncio.sleep(0)
            handle(message)

        worker = queue.worker(handle_in_loop if is_coroutine else handle, concurrency=1, grace=1)
        running = asyncio.create_task(worker.run())
        for _ in range(400):
            await asyncio.sleep(0.05)
            if (await queue.stats()).dead == len(EXITS):
                break
        worker.stop()
        await running
        dead_letters = {dead_letter.body: dead_letter.error for dead_letter in await queue.dlq.list()}
        received = (await queue.stats()).counts["received"]
        await client.close()
        return dead_letters, received, done

    errors = {"exit": "SystemExit(3)", "interrupt": "KeyboardInterrupt('by hand')"}
    assert asyncio.run(main()) == (errors, 5, ["good"])


def test_a_bad_delay_is_refused_where_it_is_written():
    """So its traceback shows the line."""
    for say in (lambda: Retry(-1), lambda: Retry("later"), lambda: Release(None)):
        with pytest.raises(InvalidConfig, match="delay"):
            say()


def test_the_asyncio_face_frees_the_slot_of_a_plain_handler_however_it_ends():
    """It runs in a thread, and not every error can cross to a loop unharmed."""

    async def main():
        client = await holdfast.aio.connect("memory://")
        queue = client.queue("jobs of plain handlers", max_attempts=2, backoff=SOON)
        await queue.publish_many([0, 1, 2])

        def handle(message):
            if message.body < 2:
                (lambda: next(iter(())), lambda: sys.exit(1))[message.body]()

        worker = queue.worker(handle, concurrency=1, grace=1)
        running = asyncio.create_task(worker.run())
        for _ in range(400):
            await asyncio.sleep(0.05)
            if (await queue.stats()).dead == 2:
                break
        worker.stop()
        await running
        dead_letters = {dead_letter.body: dead_letter.error for dead_letter in await queue.dlq.list()}
        acked = (await queue.stats()).counts["acked"]
        await client.close()
        return dead_letters, acked

    assert asyncio.run(main()) == ({0: "StopIteration()", 1: "SystemExit(1)"}, 1)


def test_a_handler_learns_of_every_doubt(timed):
    """The first doubt passed, because the engine was only away; the second is another one."""
    client = timed.connect()
    queue = client.queue("jobs", ttl=1, grace=0.2)
    queue.publish("x")
    wire, reported, gate = timed.wire(client), [], threading.Event()
    worker = queue.worker(lambda _message: gate.wait(30), concurrency=2, on_loss=reported.append)
    running = timed.start(worker.run)
    eventually(lambda: worker.running, what="a handler at work")
    for time_ in (1, 2):
        wire.fail()
        with passing(timed.clock):
            eventually(lambda time_=time_: len(reported) == time_, what=f"doubt {time_}")
        wire.heal()
        with passing(timed.clock):
            eventually(lambda: not reported[0].lost, what="the end of a doubt")
    gate.set()
    worker.stop()
    with passing(timed.clock):
        running.result()
    assert queue.stats().counts["acked"] == 1


def test_a_prefetched_message_is_not_started_in_doubt(timed):
    """Another consumer may have it by now; it starts after the next answer of the engine."""
    client = timed.connect()
    queue = client.queue("jobs", ttl=1, grace=0.2)
    queue.publish_many(range(3))
    wire, gates, begun = timed.wire(client), [threading.Event() for _ in range(3)], []

    def handle(message):
        begun.append(message.body)
        assert gates[message.body].wait(30)

    worker = queue.worker(handle, concurrency=1, prefetch=2)
    running = timed.start(worker.run)
    eventually(lambda: begun == [0] and queue.stats().in_flight == 3, what="one at work and two ahead")
    wire.fail(ConsumerHeartbeat)
    timed.clock.advance(5)
    gates[0].set()
    eventually(lambda: queue.stats().counts.get("acked") == 1, what="the first one's end")
    assert begun == [0]
    wire.heal()
    for gate in gates:
        gate.set()
    with passing(timed.clock):
        eventually(lambda: queue.stats().counts.get("acked") == 3, what="the others")
        worker.stop()
        running.result()
    assert begun == [0, 1, 2]


def test_unseen_messages_of_a_busy_worker_are_released(timed):
    """A late copy of its receive took them, and its answer was lost.

    Its handler takes long, and other workers are idle.
    """
    client, other = timed.connect(), timed.connect().queue("jobs")
    gate = threading.Event()
    worker = client.queue("jobs").worker(lambda _message: gate.wait(30), concurrency=1)
    running = timed.start(worker.run)
    other.publish("long")
    eventually(lambda: worker.running, what="a handler at work")
    other.publish("unseen")
    assert len(timed.peer().say(Receive("jobs", other.consumers()[0].token, 1)).deliveries) == 1
    with passing(timed.clock), other.consumer() as successor:
        (message,) = successor.receive(timeout=600)
        assert (message.body, message.attempt) == ("unseen", 1)
        message.ack()
        assert worker.running == 1
        gate.set()
        worker.stop()
        running.result()


def test_a_message_in_quarantine_does_not_stop_a_worker_with_a_long_handler(timed):
    """It receives nothing for a while, to drain; then it goes on with its free slots."""
    client, other = timed.connect(), timed.connect().queue("jobs", ttl=1, grace=0)
    queue = client.queue("jobs", ttl=1, grace=0)
    other.publish("long")
    long, done, wire = threading.Event(), [], timed.wire(client)

    def handle(message):
        if message.body == "long":
            assert long.wait(60)
        done.append(message.body)

    worker = queue.worker(handle, concurrency=4)
    running = timed.start(worker.run)
    eventually(lambda: worker.running, what="the one that takes long")
    wire.fail(Receive)
    peer = timed.peer()
    with passing(timed.clock):
        other.publish_many(["a", "b"])
        for doomed in ("first", "second"):
            peer.say(Join("jobs", doomed, "", "", 200))
            assert len(peer.say(Receive("jobs", doomed, 2)).deliveries) == 2
            eventually(lambda: other.stats().in_flight == 1, what="a death that is found")
        assert other.stats().quarantined == 2
        before = len(wire.commands(Receive))
        wire.heal()
        wire.until_sent(Receive, before + 1)  # the engine asks it to drain
        other.publish("short")
        eventually(lambda: done == ["short"], 20, "the short one's end")
        long.set()
        eventually(lambda: len(done) == 4, 20, "the end of all")
    worker.stop()
    running.result()
    assert sorted(done) == ["a", "b", "long", "short"]
