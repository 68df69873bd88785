"""Workers that are killed, frozen and stopped, and a server that was away.

Published messages are compared with effects.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import pytest
from queue_children import TTL_S, jobs

from holdfast.testing import eventually

WAIT_S = 60
# `make trials` runs with many more messages and kills.
LARGE = os.environ.get("HOLDFAST_FLEETS") == "large"
SENT, KILLS, WORKERS = (4_000, 40, 4) if LARGE else (150, 3, 3)


def effects(journal):
    """Return how often each message was handled."""
    return Counter(words[1] for words in journal("done"))


@pytest.mark.acceptance("A1-3")
@pytest.mark.timeout(600 if LARGE else 120)
def test_workers_killed_at_random_lose_nothing(client, start, journal):
    """T1: every message is handled; twice only if its worker died during the work."""
    queue, hands = jobs(client, max_attempts=20), 4
    sent = set(queue.publish_many(range(SENT)))
    workers = [start("work", seconds=0.01, concurrency=hands) for _ in range(WORKERS)]
    for worker in workers:
        worker.wait_ready(WAIT_S)
    for kill in range(KILLS):
        some = SENT * (kill + 1) / (KILLS + 2)
        eventually(lambda some=some: len(effects(journal)) >= some, WAIT_S, "work that goes on")
        workers.pop(random.randrange(len(workers))).kill()
        workers.append(start("work", seconds=0.01, concurrency=hands))
    eventually(lambda: sent <= effects(journal).keys(), WAIT_S, "all that was sent")
    eventually(lambda: queue.stats().in_flight == 0, WAIT_S, "an end of everything in flight")

    again = sum(effects(journal).values()) - len(sent)
    assert again <= KILLS * hands
    assert effects(journal).keys() == sent
    assert queue.stats().dead == 0
    assert queue.check()
    eventually(lambda: queue.stats().consumers <= WORKERS, WAIT_S, "an end of the dead consumers")


@pytest.mark.parametrize("url", ["redis"], indirect=True)
def test_a_worker_that_acknowledges_first_loses_and_the_comparison_shows_it(client, start, journal):
    """The control: without it, a comparison that can find nothing would look the same."""
    queue = jobs(client)
    sent = set(queue.publish_many(["x"]))
    hasty = start("acknowledge_first")
    hasty.wait_ready(WAIT_S)
    hasty.kill()
    worker = start("work")
    worker.wait_ready(WAIT_S)
    eventually(lambda: queue.stats().ready == 0, WAIT_S, "an empty queue")

    assert sent - effects(journal).keys() == sent


@pytest.mark.acceptance("A1-11")
def test_the_two_steps_of_the_original_lose_a_message_where_ours_is_one_step(server):
    """Ack, then add again: a process that dies between them leaves an entry that no consumer gets."""
    stream, group = "original", "g"
    server.command("XGROUP", "CREATE", stream, group, "0", "MKSTREAM")
    entry = server.command("XADD", stream, "*", "job", "1")
    server.command("XREADGROUP", "GROUP", group, "dead", "STREAMS", stream, ">")
    server.command("XACK", stream, group, entry)  # the recoverer, which dies here

    assert server.command("XPENDING", stream, group)[0] == 0
    assert server.command("XREADGROUP", "GROUP", group, "next", "STREAMS", stream, ">") is None
    assert server.command("XLEN", stream) == 1


def test_a_frozen_worker_is_replaced_and_its_late_outcome_is_refused(client, start, freeze, journal):
    """T4: it was declared dead; when it comes back, another worker has its message, and its handler learns that.

    It is frozen for three ttls, so that everything that can expire has expired.
    """
    queue = jobs(client)
    queue.publish("held")
    holder = start("hold_one")
    holder.wait_ready(WAIT_S)
    queue.publish("worked")
    careful = start("work_with_care")
    careful.wait_ready(WAIT_S)
    for process in (holder, careful):
        freeze(process)
    until = time.monotonic() + 3 * TTL_S
    worker = start("work")
    eventually(lambda: len(journal("done")) == 2, WAIT_S, "the work of another one")
    eventually(lambda: time.monotonic() > until, WAIT_S, "three ttls")
    for process in (holder, careful):
        process.thaw()
    os.kill(holder.pid, signal.SIGUSR1)
    eventually(lambda: journal("lost") and journal("cancelled"), WAIT_S, "a refusal, and a handler that was told")

    (lost,) = journal("lost")
    done = {words[2]: int(words[3]) for words in journal("done")}
    assert done["held"] > int(lost[1])
    assert done["worked"] > int(journal("cancelled")[0][1])
    assert journal("acked") == []
    assert [len(journal(word)) for word in ("done", "cancelled")] == [2, 1]
    assert queue.stats().counts["lost"] >= 1
    assert queue.stats().counts["acked"] == 2
    assert worker.alive
    assert queue.check()


@pytest.mark.parametrize("url", ["redis"], indirect=True)
def test_a_server_that_was_away_makes_no_duplicate(client, server, start, journal):
    """T12: no heartbeat could arrive for five ttls.

    No consumer is dead for that, not even one that comes back a little later.
    """
    ttl = 2
    queue = jobs(client, ttl=ttl)
    queue.publish_many(range(8))
    workers = [start("work", seconds=2, concurrency=2, prefetch=0, ttl=ttl) for _ in range(2)]
    eventually(lambda: len(journal("begun")) >= 4, WAIT_S, "four at work")
    workers[1].freeze()
    server.freeze()
    try:
        time.sleep(5 * ttl)
    finally:
        server.thaw()
    time.sleep(0.8)  # the other worker has checked by now
    workers[1].thaw()
    eventually(lambda: len(journal("done")) == 8, WAIT_S, "all eight")

    eventually(lambda: queue.stats().in_flight == 0, WAIT_S, "an end of everything in flight")
    assert len(journal("begun")) == 8
    counts = queue.stats().counts
    counts.pop("lost", None)  # an outcome that is resent after a lost answer is refused the second time
    assert counts == {"acked": 8, "published": 8, "received": 8}
    assert all(worker.alive for worker in workers)


@pytest.mark.acceptance("A1-13")
def test_a_restarted_worker_of_the_same_name_does_not_keep_the_dead_one_alive(client, start, journal):
    """The messages of its predecessor are redelivered, although a consumer of that name lives."""
    queue = jobs(client)
    queue.publish("x")
    first = start("hold_one")
    first.wait_ready(WAIT_S)
    first.kill()
    start("work", label="holder")
    eventually(lambda: len(journal("done")) == 1, WAIT_S, "the work of its successor")

    assert [consumer.label for consumer in queue.consumers()] == ["holder"]
    eventually(lambda: queue.stats().counts.get("acked") == 1, WAIT_S, "its word")


@pytest.mark.acceptance("A1-20", "C-17")
def test_a_terminated_worker_finishes_started_work_and_releases_the_rest(client, start, journal):
    """At once, with no attempt used; the next worker gets it without waiting for a ttl."""
    queue = jobs(client)
    queue.publish_many(range(100))
    worker = start("work", seconds=2, concurrency=10, prefetch=90)
    eventually(lambda: len(journal("begun")) == 10 and queue.stats().in_flight == 100, WAIT_S, "ten at work")
    worker.terminate()
    eventually(lambda: queue.stats().ready == 90, WAIT_S, "ninety that were given back")
    assert worker.wait(WAIT_S) == 0

    now = queue.stats()
    assert (len(journal("done")), now.counts["acked"], now.consumers, now.in_flight) == (10, 10, 0, 0)
    assert {seen.attempts for seen in queue.peek(limit=100)} == {0}


def test_a_poison_message_is_dead_lettered_and_its_neighbours_are_handled(client, start, journal):
    """It kills every worker that receives it. After two deaths in company, each further death is its own."""
    queue = jobs(client, max_attempts=2)
    queue.publish_many(["poison", *range(64)])
    worker = start("work", prefetch=80)
    deaths = 0
    deadline = time.monotonic() + WAIT_S
    with queue.consumer("bystander"):  # a client that checks for dead consumers, and receives nothing
        while queue.stats().dead == 0 or len(effects(journal)) < 64:
            assert time.monotonic() < deadline, queue.stats()
            if not worker.alive:
                deaths += 1
                worker = start("work", prefetch=80)
            time.sleep(0.05)

    (letter,) = queue.dlq.list()
    assert (letter.body, letter.reason) == ("poison", "attempts used up")
    assert deaths <= 2 + 3
    assert {words[4] for words in journal("done")} == {"1"}
    assert queue.check()
