"""An interrupted worker or consumer leaves nothing behind: what it had is given back, and no attempt is used."""

import signal
import subprocess
import sys

import pytest

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
def test_an_interrupt_gives_back_what_was_taken(work):
    """Ctrl-C waits for no handler."""
    command = [sys.executable, "-c", PROGRAM.format(work=work)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=30)

    assert told == "5 0 0 [0, 0, 0, 0, 0] True\n"
    assert process.returncode == 0
