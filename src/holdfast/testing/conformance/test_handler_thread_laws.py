"""Handlers in threads, and handlers that only look like plain functions: each runs to its end, or is refused."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

import holdfast
from holdfast import InvalidConfig, aio
from holdfast.commands.queue import ConsumerHeartbeat, ReclaimExpired
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import passing

pytestmark = pytest.mark.capability("queues")


class Falsy(Exception):
    def __len__(self):
        return 0


def on_asyncio(program):
    """Return the result of `program(queue)`, on an engine and in a loop of its own."""

    async def main():
        async with await aio.connect("memory://") as client:
            return await program(client.queue(f"hands of {program.__qualname__}", max_attempts=1))

    return asyncio.run(main())


async def until(queue, condition):
    while not condition(await queue.stats()):  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0.01)


def test_an_awaitable_that_a_plain_handler_returns_is_awaited():
    """A lambda around a coroutine function is called in a thread: without the await, the work would not happen."""
    seen = []

    async def handle(message):
        await asyncio.sleep(0)
        seen.append(message.body)

    class Handler:
        async def __call__(self, message):
            await handle(message)

    async def program(queue):
        handlers = (lambda message: handle(message), Handler())  # noqa: PLW0108 - that is the point
        for number, handler in enumerate(handlers):
            await queue.publish(number)
            await queue.worker(handler).run_until_idle()
        return (await queue.stats()).counts

    assert on_asyncio(program) == {"acked": 2, "published": 2, "received": 2}
    assert seen == [0, 1]


def test_a_handler_whose_body_would_never_run_is_refused():
    """By its kind, before any message is received; or by its result, as a failed attempt."""

    def generator(message):
        yield message

    async def generated(message):
        yield message

    async def program(queue):
        for each in (generator, generated):
            with pytest.raises(InvalidConfig, match="generator"):
                queue.worker(each)
        await queue.publish_many([1, 2])
        await queue.worker(lambda message: (generator if message.body == 1 else generated)(message)).run_until_idle()
        return sorted(dead_letter.error.partition("(")[0] for dead_letter in await queue.dlq.list())

    assert on_asyncio(program) == ["InvalidConfig"] * 2


def test_the_blocking_face_refuses_results_that_nothing_awaits_or_iterates():
    """Also from a callable object, and from a lambda."""

    class Handler:
        async def __call__(self, message):
            raise AssertionError(message)

    async def generated(message):
        yield message

    with holdfast.connect("memory://") as client:
        queue = client.queue("handlers that nothing awaits", max_attempts=1)
        with pytest.raises(InvalidConfig, match=r"holdfast\.aio"):
            queue.worker(Handler())
        queue.publish(1)
        queue.worker(lambda message: generated(message)).run_until_idle()  # noqa: PLW0108
        assert [dead_letter.error.partition("(")[0] for dead_letter in queue.dlq.list()] == ["InvalidConfig"]


def test_an_exception_that_is_falsy_is_still_an_error():
    """Some exceptions have a length, which may be 0."""

    async def program(queue):
        async def handle(_message):
            raise Falsy

        await queue.publish(1)
        worker = queue.worker(handle, concurrency=1, grace=0)
        await asyncio.wait_for(worker.run_until_idle(), 20)
        return [dead_letter.error for dead_letter in await queue.dlq.list()]

    assert on_asyncio(program) == ["Falsy()"]


def test_a_run_does_not_wait_for_a_thread_that_goes_on_and_the_next_run_has_its_own(face):
    """A thread cannot be ended. Its message is requeued at once, and the next run does without that thread."""
    queue = face.connect().queue("jobs")
    queue.publish_many(range(5))
    gate, begun = threading.Event(), []

    def handle(message):
        begun.append(message.body)
        if len(begun) <= 5:
            assert gate.wait(40)

    worker = queue.worker(handle, concurrency=5, grace=60)
    running = face.start(worker.run)
    try:
        eventually(lambda: len(begun) == 5, what="five at work")
        stopped = time.monotonic()
        worker.stop()
        worker.stop()
        running.result(30)
        assert time.monotonic() - stopped < 4  # a second for each would be five

        worker.run_until_idle()
        assert sorted(begun) == sorted([*range(5)] * 2)
        assert queue.stats().counts["acked"] == 5
    finally:
        gate.set()


def test_a_second_run_at_the_same_time_is_refused_and_does_no_harm():
    """The second run raises; the threads of the first go on."""
    begun = []

    async def program(queue):
        worker = queue.worker(lambda message: begun.append(message.body), concurrency=2)
        running = asyncio.ensure_future(worker.run())
        await until(queue, lambda now: now.waiting)
        with pytest.raises(RuntimeError, match=r"^worker .* is already running"):
            await worker.run()
        await queue.publish_many([1, 2])
        await until(queue, lambda now: not sum(now[1:5]))
        worker.stop()
        await running
        return (await queue.stats()).dead

    assert on_asyncio(program) == 0
    assert sorted(begun) == [1, 2]


def test_handlers_of_two_sessions_learn_once_each_of_their_loss(timed):
    """One goes on after its session was lost; then the next session is in doubt, and stays so."""
    client, other = timed.connect(), timed.connect()
    queue, reported, begun, gate = client.queue("jobs", ttl=1, grace=0), [], [], threading.Event()

    def handle(message):
        begun.append(message.body)
        assert gate.wait(60)

    worker = queue.worker(handle, concurrency=2, on_loss=lambda message: reported.append(message.body))
    running = timed.start(worker.run)
    queue.publish("first")
    eventually(lambda: begun == ["first"], what="the first at work")
    wire = timed.wire(client)
    wire.fail()
    with other.queue("jobs", ttl=1, grace=0).consumer() as successor, passing(timed.clock):
        (message,) = successor.receive(timeout=60)
        message.ack()
        eventually(lambda: reported == ["first"], what="its handler told")
    wire.heal()
    with passing(timed.clock):
        other.queue("jobs").publish("second")
        eventually(lambda: begun == ["first", "second"], what="the second at work")
        wire.fail(ConsumerHeartbeat)
        wire.fail(ReclaimExpired)
        eventually(lambda: reported == ["first", "second"], what="its handler told, too")
        turns = len(wire.commands(ConsumerHeartbeat))
        wire.until_sent(ConsumerHeartbeat, turns + 20)
    wire.heal()
    gate.set()
    worker.stop()
    with passing(timed.clock):
        running.result()
    assert reported == ["first", "second"]


ENDLESS = """
import asyncio, threading
from holdfast import aio

async def main():
    async with await aio.connect("memory://") as client:
        queue = client.queue("jobs")
        await queue.publish(1)
        worker = queue.worker(lambda message: print("begun", flush=True) or threading.Event().wait(), grace=0.1)
        running = asyncio.ensure_future(worker.run())
        while not worker.running:
            await asyncio.sleep(0.01)
        worker.stop()
        await running
        print((await queue.stats()).ready, flush=True)

asyncio.run(main())
"""


def test_a_plain_handler_without_end_does_not_keep_the_process_alive():
    """Its message was requeued: there is nothing left to wait for."""
    ended = subprocess.run([sys.executable, "-c", ENDLESS], check=False, capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (0, "begun\n1\n"), ended.stderr
