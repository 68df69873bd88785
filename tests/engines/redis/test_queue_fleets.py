"""Many consumers and many messages on one server: the dead are found among the slow, in short steps, and memory ends.

`make trials` has the sizes that people mean when they say many.
"""

import os
import re
from functools import partial

import pytest
from redis_faces import Peer, Place

from holdfast.commands import Renewed
from holdfast.commands.queue import (
    ACK,
    BATCH_MAX,
    COSTLY_BATCH_MAX,
    ConsumerHeartbeat,
    Join,
    Leave,
    MessageOutcome,
    NewMessage,
    Publish,
    Receive,
    RecordOutcomes,
)
from holdfast.commands.queue_admin import GetStats
from holdfast.testing import eventually

LARGE = os.environ.get("HOLDFAST_FLEETS") == "large"
DEAD_CONSUMERS, EACH, STARTING = (100, 1000, 200) if LARGE else (16, 250, 12)
SENT = 1_000_000 if LARGE else 20_000
MOVED = re.compile(r"(\d+) messages ready again")

pytestmark = pytest.mark.timeout(1200 if LARGE else 120)


@pytest.fixture
def fleet(one_server, loop):
    place = Place(one_server, "blocking", loop)
    yield place
    place.close()
    one_server.command("FLUSHALL")


def fill(peer, count):
    """Publish messages with as few calls as possible."""
    for first in range(0, count, BATCH_MAX):
        part = range(first, min(count, first + BATCH_MAX))
        peer.send(Publish("q", f"call {first}", tuple(NewMessage(f"{number}", b"%d" % number) for number in part)))


def take(peer, token, count):
    found = 0
    while found < count:
        found += len(peer.send(Receive("q", token, min(BATCH_MAX, count - found))).deliveries)


def test_thousands_of_slow_consumers_do_not_hide_ten_dead_ones(fleet):
    """T7: a reclaim finds each dead consumer. Five thousand slow ones before them cost nothing."""
    peer, slow = fleet.peer(), [f"slow {number}" for number in range(10)]
    fill(peer, 5010)
    for token in slow:
        peer.send(Join("q", token, "", token, 60_000))
        take(peer, token, 500)
    for number in range(10):
        peer.send(Join("q", f"dead {number}", "", f"dead {number}", 500))
        take(peer, f"dead {number}", 1)
    done = []
    with fleet.connect().queue("q", ttl=1, grace=0.2).consumer(prefetch=10) as consumer:
        while len(done) < 10:
            messages = consumer.receive(10, timeout=20)
            assert messages, "a dead one was not found"
            for message in messages:
                done.append(message.body)
                message.ack()

    assert sorted(done) == list(range(5000, 5010))
    assert all(peer.send(ConsumerHeartbeat("q", token, 60_000)) == Renewed() for token in slow)
    assert peer.send(GetStats("q")).held == 5000


def test_a_fleet_gets_the_messages_of_a_dead_fleet_in_short_steps(fleet):
    """T27: all clients check, one check counts, and each moves a bounded part. Each message is processed once."""
    server, peer, count = fleet.server, fleet.peer(), DEAD_CONSUMERS * EACH
    fill(peer, count)
    for number in range(DEAD_CONSUMERS):
        peer.send(Join("q", f"dead {number}", "", f"dead {number}", 1))
        take(peer, f"dead {number}", EACH)
    server.command("CONFIG", "RESETSTAT")
    done, clients = [], [fleet.connect() for _ in range(min(STARTING, 20))]

    def work(client):
        with client.queue("q", ttl=5, grace=0, max_attempts=3).consumer(prefetch=100) as consumer:
            while len(done) < count:
                for message in consumer.receive(100, timeout=0.5):
                    done.append(message.body)
                    message.ack()

    running = [fleet.start(partial(work, clients[number % len(clients)])) for number in range(STARTING)]
    for each in running:
        each.result(1000 if LARGE else 100)

    assert sorted(done) == list(range(count))
    found = [int(MOVED.search(event.detail)[1]) for event in fleet.events if event.kind == "reclaimed"]
    assert sum(found) == count
    assert max(found) < COSTLY_BATCH_MAX, "a look has moved more than a part"
    assert len(found) <= count / (COSTLY_BATCH_MAX - 1) + 2 * DEAD_CONSUMERS, "many looks have moved little"
    middle, late = latencies(server)  # by the clock on the wall: test_queue_steps.py has what they work
    print(
        f"\n{count} messages of {DEAD_CONSUMERS} dead, {STARTING} that start: {len(found)} looks have moved some;",
        end=" ",
    )
    print(f"a script took {middle / 1000:.2f} ms, one in a hundred more than {late / 1000:.2f} ms")
    assert middle < 2000  # what one in a hundred takes is up to whoever else uses the machine


def latencies(server):
    """Return the median and the 99th percentile of the scripts' times, in microseconds."""
    text = server.command("INFO", "latencystats").decode()
    line = next(line for line in text.splitlines() if line.startswith("latency_percentiles_usec_evalsha:"))
    figures = dict(each.split("=") for each in line.partition(":")[2].split(","))
    return float(figures["p50"]), float(figures["p99"])


def test_memory_goes_back_when_everything_is_done(one_server):
    """T33: lists and hashes end with their last entry; results are remembered for a minute, consumers are not."""
    peer = Peer(one_server.url)
    work(peer, "warm", BATCH_MAX)
    before = used(one_server)

    peak = work(peer, "all", SENT, lambda: used(one_server))

    assert peak - before > 100 * BATCH_MAX  # it would be seen
    calls = -(-SENT // BATCH_MAX)
    assert used(one_server) - before < 500_000 + 250 * calls
    keys = {key.partition(b":published")[0] for key in one_server.command("KEYS", "hf2:{q}:queue*")}
    assert keys == {b"hf2:{q}:queue"}
    if LARGE:
        eventually(lambda: one_server.command("KEYS", "hf2:*") == [], 180, "an end of what is remembered")
        assert used(one_server) - before < 1_000_000
    peer.close()
    one_server.command("FLUSHALL")


def work(peer, call, count, look=lambda: 0):
    """Publish, receive and ack in parts, with new consumers each time; return the largest value of `look`."""
    most = 0
    for first in range(0, count, BATCH_MAX):
        part = min(BATCH_MAX, count - first)
        token = f"{call} {first // 4096}"
        peer.send(Join("q", token, "", token, 60_000))
        peer.send(
            Publish("q", f"{call} {first}", tuple(NewMessage(f"{call} {first + n}", b"x" * 100) for n in range(part)))
        )
        taken = peer.send(Receive("q", token, part)).deliveries
        most = max(most, look()) if first < 4096 else most
        peer.send(RecordOutcomes("q", token, tuple(MessageOutcome(each.entry, ACK) for each in taken)))
        if (first + BATCH_MAX) % 4096 < BATCH_MAX or first + BATCH_MAX >= count:
            peer.send(Leave("q", token))
    return most


def used(server):
    return int(server.command("INFO", "memory").partition(b"used_memory:")[2].partition(b"\r")[0])
