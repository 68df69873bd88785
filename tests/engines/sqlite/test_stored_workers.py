"""Workers on a SQLite file: what a killed process had is found by whoever comes next."""

import threading

import holdfast
from holdfast.testing import ready


def take(url):
    """A child that takes everything, says so, and is never heard of again."""
    with holdfast.connect(url) as hf, hf.queue("jobs").consumer("doomed", prefetch=10) as consumer:
        consumer.receive(10, timeout=60)
        ready()
        threading.Event().wait(120)


def test_whoever_works_until_nothing_is_ready_does_what_a_killed_process_had(connect, url, holdfast_workers):
    """A job that is run now and then finds nothing ready; the kernel knows that the last one is dead, so it asks."""
    queue = connect().queue("jobs")
    queue.publish_many(range(3))
    doomed = holdfast_workers.start(f"{__file__}:take", url=url).wait_ready()
    done = []
    worker = queue.worker(lambda message: done.append(message.body))

    worker.run_until_idle()
    assert done == []
    assert queue.stats().in_flight == 3, "it lives, and is only slow"
    doomed.kill()
    worker.run_until_idle()

    assert sorted(done) == [0, 1, 2]
    assert queue.check()
