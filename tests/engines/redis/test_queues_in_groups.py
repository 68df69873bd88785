"""Queues while servers are replaced and slots are moved: the application does nothing, and no message is lost."""

import os
import statistics
import threading
import time
from collections import Counter
from itertools import pairwise

import pytest

from holdfast import Unavailable
from holdfast.testing import eventually
from tests.support.clusters import slot_of

COUNT = 200
HANDS, AHEAD = 2, 8
# So soon somebody works again after a graceful failover; `make trials` asserts it, of ten of them.
RESUMED_S = 2
LARGE = os.environ.get("HOLDFAST_FLEETS") == "large"
# Longer than a failover on a busy machine: nobody is taken for dead by it.
TTL_S = 30


class Work:
    """Consumers that record what they have processed, until the end of the test."""

    def __init__(self, place):
        self.seen, self.at, self.verdicts, self._over, self._group = [], [], [], threading.Event(), place.server
        self.unconfirmed = []
        clients = [place.connect() for _ in range(HANDS)]
        self._running = [place.start(lambda client=client: self._consume(client)) for client in clients]
        worried = place.connect()
        self._running.append(place.start(lambda: self._check(worried)))

    def _consume(self, client):
        with client.queue("q", ttl=TTL_S).consumer(prefetch=AHEAD) as consumer:
            while not self._over.is_set():
                for message in consumer.receive(AHEAD, timeout=0.3):
                    try:
                        with message:
                            time.sleep(0.005)
                            self.seen.append(message.body)
                            self.at.append(time.monotonic())
                    except Unavailable as error:
                        self.unconfirmed.append(error.outcome)  # the keeper sends the ack later

    def pause(self, since):
        """Return the longest pause since then, if work goes on again."""
        times = [since, *(at for at in tuple(self.at) if at > since)]
        return max((later - earlier for earlier, later in pairwise(times)), default=0)

    def _check(self, client):
        """Check the queue as often as possible; ignore servers that do not answer."""
        while not self._over.is_set():
            try:
                self.verdicts.append(client.queue("q").check())
            except Unavailable:
                time.sleep(0.05)

    def until_all(self, bodies):
        eventually(lambda: set(bodies) <= set(self.seen), 60, f"all of {len(bodies)} among {len(self.seen)}")

    def end(self, *, replaced=False):
        """A consumer whose leave was lost stays in the queue until the next reclaim: the test does not wait for it.

        Only if a server was `replaced` may an ack end without an answer.
        """
        self._over.set()
        for each in self._running:
            each.result(60)
        self._group.server_of("q").command("FLUSHALL")
        assert set(self.unconfirmed) <= ({"unknown"} if replaced else set())
        assert self.verdicts
        assert all(self.verdicts), [verdict for verdict in self.verdicts if not verdict]


def emptied(client):
    """Check that the queue is consistent and empty."""
    queue = client.queue("q")

    def empty():
        try:
            now = queue.stats()
        except Unavailable:  # it is still asking the former server
            return False
        return now.ready == now.in_flight == 0

    eventually(empty, 60, "an empty queue")
    assert queue.check()
    assert queue.dlq.list() == []


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_messages_that_were_replicated_outlive_a_server_that_is_replaced(grouped, fault):
    """T15, T16: all of them are processed. Some are processed twice: the last acks may not have been replicated.

    No others: whatever was said before the replicas had heard everything stays said.
    """
    client = grouped.connect()
    bodies = list(range(COUNT))
    client.queue("q", ttl=TTL_S).publish_many(bodies)
    client.queue("q").publish("later", delay=1)
    grouped.server.wait_replicated()
    work = Work(grouped)
    eventually(lambda: len(work.seen) > COUNT // 10, what="some work")
    server = grouped.server.server_of("q")
    told = work.seen[: -HANDS * AHEAD]  # whoever has these no more has said so
    grouped.server.wait_replicated()

    getattr(server, fault)()
    grouped.server.wait_replaced(server)

    work.until_all([*bodies, "later"])
    emptied(client)  # by those who still work: what was not known to be done is done again
    work.end(replaced=True)
    assert told
    assert {Counter(work.seen)[body] for body in told} == {1}


def test_a_graceful_failover_loses_nothing_that_was_confirmed(clustered):
    """T14: the old master stops before the new one starts. Producers and consumers go on by themselves, and soon."""
    publisher, work = clustered.connect(), Work(clustered)
    confirmed, over = [], threading.Event()

    def publish():
        queue, number = publisher.queue("q", ttl=TTL_S), 0
        while not over.is_set():
            number += 1
            try:
                queue.publish(number)
            except Unavailable:
                continue  # nobody knows whether it was sent: it is not counted
            confirmed.append(number)
            time.sleep(0.002)

    publishing = clustered.start(publish)
    eventually(lambda: len(confirmed) > 50, what="some messages")
    pauses = []
    for _ in range(10 if LARGE else 2):
        began = time.monotonic()
        clustered.server.failover(clustered.server.server_of("q"))
        after = len(work.seen) + 50
        eventually(lambda after=after: len(work.seen) > after, 20, "work after the failover")
        pauses.append(work.pause(began))
    over.set()
    publishing.result(30)

    work.until_all(confirmed)
    emptied(publisher)
    work.end()
    print("\nnobody worked for", ", ".join(f"{pause:.2f}" for pause in sorted(pauses)), "s")
    assert statistics.median(pauses) < (RESUMED_S if LARGE else 5 * RESUMED_S)


@pytest.mark.finding("L7")
def test_a_slot_that_moves_under_a_queue_costs_nothing(clustered):
    """T17: commands wait while the slot moves. Each message is processed once, and no caller gets an error.

    The move is short, because a publish leaves no key of its own behind.
    """
    publisher, work = clustered.connect(), Work(clustered)
    over, sent = threading.Event(), []

    def publish():
        queue = publisher.queue("q", ttl=TTL_S)
        while not over.is_set():
            queue.publish(len(sent))
            sent.append(len(sent))
            time.sleep(0.001)

    publishing = clustered.start(publish)
    eventually(lambda: len(work.seen) > 100, what="some work")
    moved = 0
    for _ in range(4):
        slot = slot_of("q")
        owner = clustered.server.server_of_slot(slot)
        moved += clustered.server.move_slot(
            slot, next(each for each in clustered.server.masters() if each is not owner)
        )
        time.sleep(0.1)
    over.set()
    publishing.result(30)

    assert 0 < moved < 4 * 20
    work.until_all(sent)
    emptied(publisher)
    work.end()
    assert sorted(work.seen) == sent
