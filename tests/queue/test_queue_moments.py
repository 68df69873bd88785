"""Faults at the worst moment: a signal with the message, a death in the middle, many at once, a sleeper reclaimed."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from queue_children import TTL_S, jobs

from holdfast import Reject
from holdfast.commands.queue import Join, NewMessage, Publish, Receive, ReclaimExpired
from holdfast.core.step import run
from holdfast.engines.redis.scripts import SCRIPTS
from holdfast.testing import eventually
from tests.support import wallclock
from tests.support.proxy import Proxy, script

WAIT_S = 60
# `make trials` runs with many more.
MANY = 10_000 if os.environ.get("HOLDFAST_FLEETS") == "large" else 1_200

pytestmark = pytest.mark.timeout(600 if MANY > 2_000 else 120)


def effects(journal):
    """Return how often each message was handled."""
    return Counter(words[1] for words in journal("done"))


def add_dead_letters(queue, count):
    """Add that many dead dead_letters, and return their ids."""
    ids = queue.publish_many(range(count))

    def handle(_message):
        raise Reject("no use")

    queue.worker(handle, concurrency=64).run_until_idle()
    return set(ids)


def test_a_redrive_that_is_killed_leaves_each_message_in_one_place(client, start, journal):
    """T22: while a worker handles the redriven messages.

    The next redrive does the rest, and each message is handled once.
    """
    queue = jobs(client)
    dead_letters = add_dead_letters(queue, MANY)
    start("work", concurrency=16, prefetch=16).wait_ready(WAIT_S)
    redriving = start("redrive", rate=MANY / 2)
    eventually(lambda: len(effects(journal)) > MANY // 10, WAIT_S, "some that are done")
    redriving.kill()
    eventually(lambda: sum(queue.stats()[1:5]) == 0, WAIT_S, "an end of what was sent again")

    left = {each.id for each in queue.dlq.list(limit=MANY)}
    done = effects(journal)
    assert left
    assert left | done.keys() == dead_letters
    assert left.isdisjoint(done)
    assert queue.check()
    assert queue.dlq.redrive() == len(left)
    eventually(lambda: len(effects(journal)) == MANY, WAIT_S, "all of them")
    assert set(effects(journal).values()) == {1}


def test_a_stop_signal_that_comes_with_a_message_loses_neither(client, start, journal):
    """T26: workers wait, and both wake them at once.

    A received message is acked or released, and no attempt is used.
    """
    queue = jobs(client)
    workers = [start("work", concurrency=1, prefetch=0) for _ in range(3)]
    eventually(lambda: queue.stats().waiting == len(workers), WAIT_S, "three that wait")
    for number, worker in enumerate(workers):
        if number % 2:
            worker.terminate()
        queue.publish_many(range(2))
        if not number % 2:
            worker.terminate()  # once: a second signal would not wait for running handlers
    for worker in workers:
        assert worker.wait(WAIT_S) == 0

    now = queue.stats()
    assert (now.in_flight, now.consumers, now.delayed, now.dead) == (0, 0, 0, 0)
    assert now.ready + now.counts.get("acked", 0) == 2 * len(workers)
    assert len(effects(journal)) == now.counts.get("acked", 0)
    assert {seen.attempts for seen in queue.peek(limit=100)} <= {0}
    assert queue.check()


def test_many_messages_due_at_once_are_delivered_once_each_and_none_too_early(client):
    """T28: by the engine's clock, in batches; no wake-up is needed."""
    queue, delay, done = jobs(client), 1.0, []
    began = time.monotonic()
    ids = queue.publish_many(range(MANY), delay=delay)
    with queue.consumer(prefetch=128) as one, queue.consumer(prefetch=128) as other:
        while len(done) < MANY:
            assert time.monotonic() - began < WAIT_S + MANY / 200
            for consumer in (one, other):
                for message in consumer.receive(128, timeout=0.5):
                    done.append((time.monotonic(), message.id))
                    message.ack()

    assert sorted(id_ for _, id_ in done) == sorted(ids)
    first, last = min(done)[0] - began, max(done)[0] - began
    assert first >= delay
    assert queue.stats().counts["acked"] == MANY
    print(f"\nthe first of {MANY} came {first - delay:.3f} s after its time, the last {last - delay:.3f} s")


@pytest.mark.parametrize("url", ["redis"], indirect=True)
def test_the_calendars_of_clients_do_not_matter(client, start, journal, tmp_path):
    """T28: the producer is an hour ahead, the worker an hour behind. A delay is as long as it says.

    The engine's clock counts. If the engine is a file, that is the machine's own clock, and there is no other.
    """
    if not wallclock.available():
        pytest.skip(wallclock.missing())
    ahead, behind = (wallclock.WallClock(tmp_path, name) for name in ("ahead", "behind"))
    ahead.set(+3600)
    behind.set(-3600)
    queue, delay = jobs(client), 1.0
    began = time.time()
    start("work", env=behind.env, label="behind").wait_ready(WAIT_S)
    start("send_later", env=ahead.env, count=20, delay=delay).wait_ready(WAIT_S)
    eventually(lambda: queue.stats().counts.get("acked") == 20, WAIT_S, "all of them")

    sent = [(float(said), float(at)) for _, said, at in journal("sent")]
    met = [(float(said), float(at)) for _, _, said, at in journal("met")]
    assert min(said for said, _ in sent) > began + 3000, "its calendar was not ahead"
    assert max(said for said, _ in met) < began - 3000, "its calendar was not behind"
    assert set(effects(journal).values()) == {1}
    assert min(at for _, at in met) >= min(at for _, at in sent) + delay
    assert queue.stats().counts == {"acked": 20, "published": 20, "received": 20}
    assert queue.check()


def test_a_worker_frozen_in_its_sleep_keeps_no_message_and_comes_back(client, start, freeze, journal):
    """T38: its wake-up is lost.

    Another worker gets the message, and when it resumes, it gets the next with a new session.
    """
    queue = jobs(client)
    sleeper = start("work", label="sleeper")
    eventually(lambda: queue.stats().waiting == 1, WAIT_S, "one that waits")
    freeze(sleeper)
    queue.publish("at once")
    with queue.consumer("awake") as awake:
        (message,) = awake.receive(timeout=WAIT_S)
        message.ack()
        eventually(lambda: [each.label for each in queue.consumers()] == ["awake"], WAIT_S, "the end of the sleeper")
        queue.publish("later")
        (message,) = awake.receive(timeout=WAIT_S)
        message.ack()
    sleeper.thaw()
    eventually(lambda: [each.label for each in queue.consumers()] == ["sleeper"], WAIT_S, "its coming back")
    queue.publish("last")
    eventually(lambda: [words[2] for words in journal("done")] == ["last"], WAIT_S, "the last one")
    eventually(lambda: queue.stats().counts["acked"] == 3, WAIT_S, "its word")
    assert queue.check()


@pytest.mark.parametrize("url", ["redis"], indirect=True)
@pytest.mark.parametrize("how", ["swallow", "drop_reply"])
def test_a_client_that_dies_during_a_reclaim_requeues_all_or_nothing(client, server, url, start, how):
    """T2: before its step or after it; there is no between. The first dead consumer's messages are ready once."""
    queue, transport = jobs(client), client._client.transport
    run(transport.apply_all([Publish("jobs", "call", tuple(NewMessage(f"{number}", b"1") for number in range(40)))]))
    run(transport.apply_all([Join("jobs", "dead", "", "dead", 1), Receive("jobs", "dead", 40)]))
    with Proxy("127.0.0.1", server.port) as proxy:
        getattr(proxy, how)(when=script(SCRIPTS[ReclaimExpired].sha))
        looker = start("work", url=f"{proxy.url}?{url.partition('?')[2]}", seconds=30, concurrency=1, prefetch=0)
        eventually(lambda: proxy.count(script(SCRIPTS[ReclaimExpired].sha)), WAIT_S, "a look")
        looker.kill()
    with queue.consumer(prefetch=100) as successor:
        found = []
        while len(found) < 40:
            messages = successor.receive(100, timeout=10 * TTL_S)
            assert messages, f"{len(found)} were found"
            found += messages
        assert sorted(int(message.id) for message in found) == list(range(40))
        assert queue.check()
