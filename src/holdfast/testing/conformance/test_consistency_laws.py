"""A consistency check tells the truth, also while producers and consumers are at work."""

import pytest

from holdfast import Backoff, Reject, Release
from holdfast.testing import eventually

pytestmark = pytest.mark.capability("queues")

NOW = Backoff(first=0, most=0)


def test_a_consistent_queue_has_no_faults_while_it_is_in_use(face):
    """Publish, receive, ack, retry, release, reject, redrive: none of them looks like a fault."""
    queue = face.connect().queue("jobs", backoff=NOW, max_attempts=3)

    def handle(message):
        kind = message.body % 7
        if kind == 1 and message.attempt == 1:
            raise ValueError("once more")
        if kind == 2:
            raise Reject("of no use")
        if kind == 3 and message.body not in given_back:
            given_back.add(message.body)
            raise Release(0.01)
        done.append(message.body)

    done, given_back, bodies = [], set(), range(210)
    workers = [face.connect().queue("jobs", backoff=NOW, max_attempts=3).worker(handle) for _ in range(2)]
    running = [face.start(worker.run) for worker in workers]

    def send():
        other = face.connect().queue("jobs")
        for first in range(0, 210, 15):
            other.publish_many(bodies[first : first + 15], key=(lambda body: f"k{body % 9}") if first % 2 else None)
        return True

    sending = face.start(send)
    reported = [queue.check()]

    def over():
        reported.append(queue.check())
        return (len(done), queue.stats().dead) == (180, 30)

    eventually(over, 40, "an end of all work")
    assert sending.result()
    for worker in workers:
        worker.stop()
    for each in running:
        each.result()

    assert [sound.faults for sound in reported if not sound] == []
    assert queue.check() == (30, ())
