"""An interrupted worker or consumer leaves nothing behind: its messages are given back, and no attempt is used."""

import contextlib
import gc
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from interrupts import SOURCE, Interrupt, InterruptAt

import holdfast
from holdfast.testing import eventually

PROGRAM = """
import sys, threading
import holdfast

hf = holdfast.connect("memory://")
queue = hf.queue("jobs")
queue.publish_many(range(5))


def handle(message):
    print("begun", flush=True)
    threading.Event().wait(60)


def consume():
    with queue.consumer(prefetch=3) as consumer:
        assert len(consumer.receive(2)) == 2
        print("begun", flush=True)
        while True:
            consumer.receive(timeout=60) if consumer.in_flight < 3 else threading.Event().wait(60)


try:
    {work}
except KeyboardInterrupt:
    now = queue.stats()
    print(now.ready, now.in_flight, now.consumers, [seen.attempts for seen in queue.peek()], bool(queue.check()))
"""


@pytest.mark.parametrize(
    "work", ["queue.worker(handle, concurrency=1, prefetch=2, grace=60).run()", "consume()"], ids=["worker", "consumer"]
)
def test_an_interrupt_gives_the_messages_back(work):
    """Ctrl-C waits for no handler."""
    command = [sys.executable, "-c", PROGRAM.format(work=work)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=30)

    assert printed == "5 0 0 [0, 0, 0, 0, 0] True\n"
    assert process.returncode == 0


# An interrupt just before the call of `leave`, or before its first line, leaves the consumer to its ttl.
TOO_EARLY = frozenset({"ConsumerCore.leave"})
ABOUT_TO_LEAVE = ("worker.py", "await self._wind_down(", "await self.consumer.leave(")


def in_a_block(queue):
    with queue.consumer(prefetch=2) as consumer:
        for message in consumer.receive(2, timeout=5):
            with message:
                pass


def by_a_worker(queue):
    queue.worker(lambda _message: None, concurrency=2).run_until_idle()


def is_about_to_leave(where):
    file, *calls = ABOUT_TO_LEAVE
    if where is None or file not in where:
        return False
    path, _, line = where.partition(" ")[0].rpartition(":")
    return Path(SOURCE + path).read_text().splitlines()[int(line) - 1].strip().startswith(tuple(calls))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <coroutine object")
@pytest.mark.filterwarnings("ignore:lease .* was dropped without a release:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <function LeaseBase.__del__")
@pytest.mark.parametrize("work", [in_a_block, by_a_worker])
def test_an_interrupt_at_any_line_leaves_no_consumer_and_no_message_behind(work):
    """Of an interrupted receive or leave: a message that was not acked is there for other consumers."""
    with holdfast.connect("memory://") as client, holdfast.connect("memory://") as other:
        where, lines = ["begun"], 0
        while any(where[-2:]):  # twice in a row it got through
            name = f"interrupted {work.__name__} {lines}"
            client.queue(name).publish_many(range(3))
            interrupt = InterruptAt(lines, among=("/core/queue/consumer.py", "/core/queue/worker.py"))
            interrupt.skip = TOO_EARLY
            with contextlib.suppress(Interrupt), interrupt:
                work(client.queue(name, ttl=60))
            queue = other.queue(name)
            if not is_about_to_leave(interrupt.where):
                eventually(lambda queue=queue: queue.stats()[4:7] == (0, 0, 0), what=f"an end after {interrupt.where}")
            now = queue.stats()
            assert now.ready + now.in_flight + now.counts.get("acked", 0) == 3, interrupt.where
            assert queue.check(), interrupt.where
            where.append(interrupt.where)
            lines += 1
    assert lines > 100
    gc.collect()
    eventually(
        lambda: not [each for each in threading.enumerate() if each.name == "holdfast-handler"],
        what="no handler threads",
    )


ASYNCIO_PROGRAM = """
import asyncio, signal, sys, time
import holdfast.aio


async def main():
    hf = await holdfast.aio.connect("memory://")
    queue = hf.queue("jobs", max_attempts=2)
    await queue.publish("x")

    async def handle(message):
        print("begun", flush=True)
        while True:
            time.sleep(0.01)  # the signal strikes here: the loop has no turn

    try:
        await queue.worker(handle, grace=0).run()
    finally:
        now = await queue.stats()
        print(now.ready, now.dead, now.counts.get("retried", 0), flush=True)
        await hf.close()


{run}
"""
RUN = "asyncio.run(main())"
LOOP = """
loop = asyncio.new_event_loop()
task = loop.create_task(main())
try:
    loop.run_until_complete(task)
except KeyboardInterrupt:
    task.cancel()
    try:
        loop.run_until_complete(task)
    except asyncio.CancelledError:
        sys.exit(130)
"""
ON_TERM = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"


@pytest.mark.finding("T5")
@pytest.mark.parametrize(
    ("run", "signals", "code"),
    [(RUN, [signal.SIGINT] * 2, None), (LOOP, [signal.SIGINT], 130), (ON_TERM + RUN, [signal.SIGTERM], 7)],
    ids=["Ctrl-C twice", "Ctrl-C in a loop of the program", "SIGTERM with a handler"],
)
def test_a_signal_in_a_coroutine_handler_still_stops_the_program(run, signals, code):
    """Only the handler's own exit is a failed attempt: a signal is about the program, not about the message."""
    with subprocess.Popen(
        [sys.executable, "-c", ASYNCIO_PROGRAM.format(run=run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "begun\n"
        for each in signals:
            process.send_signal(each)
            time.sleep(0.3)  # two signals of one kind at once are one signal
        printed, errors = process.communicate(timeout=30)
    assert printed == "1 0 0\n", errors
    assert process.returncode == (-signal.SIGINT if code is None else code), errors
