"""Queues whose server dies while its replica lags or has another clock: what is lost, and what is not."""

import random
import time

import pytest
from redis_faces import Peer

import holdfast
from holdfast import InvalidConfig, Unavailable
from holdfast.commands import Renewed
from holdfast.commands.queue import (
    BATCH_MAX,
    DELAYED,
    READY,
    ConsumerHeartbeat,
    Join,
    Leave,
    NewMessage,
    Publish,
    Receive,
    ReclaimExpired,
)
from holdfast.commands.queue_admin import CONSUMERS, MESSAGES
from holdfast.core.queue.queue import check_consistency
from holdfast.core.step import run
from holdfast.testing import eventually
from tests.support import wallclock

QUICKLY = ("--repl-diskless-sync-delay", "0")
SKEW_S = 5


@pytest.fixture
def replicated(new_server):
    """A primary and a replica in sync; the replica may have its own clock."""

    def start(env=None):
        primary, replica = new_server(arguments=QUICKLY), new_server(arguments=QUICKLY, env=env or {})
        replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
        in_step(primary, replica)
        return primary, replica

    return start


def in_step(primary, replica):
    eventually(lambda: b"master_link_status:up" in replica.command("INFO", "replication"), 20)
    eventually(lambda: primary.command("WAIT", "1", "100") == 1, 20, "a replica that has everything")


def cut_off(primary, replica):
    """Cut the replica off, so that it lags from now on."""
    replica.command("REPLICAOF", "127.0.0.1", "1")
    eventually(lambda: b"connected_slaves:0" in primary.command("INFO", "replication"), 10)


def promote(primary, replica):
    primary.kill()
    replica.command("REPLICAOF", "NO", "ONE")


@pytest.fixture
def connect():
    """Clients whose leases may stay on a dead server."""
    clients = []

    def connect(server):
        clients.append(holdfast.connect(server.url))
        return clients[-1]

    yield connect
    for client in clients:
        client.close(timeout=0)


def taken(queue):
    """Receive and ack all ready messages; return their bodies."""
    bodies = []
    with queue.consumer(prefetch=128) as consumer:
        while messages := consumer.receive(128, timeout=0):
            for message in messages:
                message.ack()
                bodies.append(message.body)
    return bodies


def test_a_primary_killed_ahead_of_its_replica_loses_the_difference(replicated, connect):
    """T16 without confirmation. The bound: messages and outcomes since the last write that the replica got."""
    primary, replica = replicated()
    queue, later = connect(primary).queue("q"), connect(replica).queue("q")
    heard = list(range(20))
    queue.publish_many(heard)
    in_step(primary, replica)
    cut_off(primary, replica)

    unheard = list(range(20, 50))
    queue.publish_many(unheard)
    with queue.consumer(prefetch=5) as consumer:
        for message in consumer.receive(5, timeout=5):
            message.ack()
    promote(primary, replica)

    assert sorted(taken(later)) == heard  # also the five that were done: at least once
    assert later.check()


def test_a_confirmed_publish_outlives_its_primary(replicated, connect):
    """T16 with confirmation: no confirmed message is lost; an unconfirmed publish raises."""
    primary, replica = replicated()
    queue, later = connect(primary).queue("q", confirm="replicas"), connect(replica).queue("q")
    confirmed, doubtful = queue.publish_many([f"many {number}" for number in range(300)]), []
    confirmed.append(queue.publish("one", dedup_key="once"))
    # Nobody waits for the replica here: a killed primary is all there is between the word and the proof.
    cut_off(primary, replica)
    for number in range(2):
        with pytest.raises(Unavailable) as trouble:
            queue.publish(f"unheard {number}")
        doubtful.append(trouble.value)
    promote(primary, replica)

    bodies = taken(later)
    assert len(bodies) == len(set(confirmed)) == 301
    assert [error.reason for error in doubtful] == ["not confirmed"] * 2
    assert all(error.retryable for error in doubtful)
    assert "0 of 1 replicas" in str(doubtful[0])
    assert not any(str(body).startswith("unheard") for body in bodies)


def test_a_message_is_confirmed_by_both_faces_and_a_full_queue_stays_full(replicated, place_on):
    """Both faces confirm; a full queue raises `QueueFull`, not an unconfirmed publish."""
    primary, replica = replicated()
    client = place_on(primary).connect()
    queue = client.queue("q", confirm="replicas", bound=2)
    queue.publish("x")
    assert replica.command("HLEN", "hf2:{q}:queue:messages") == 1
    assert len(queue.publish_many(["y"])) == 1
    assert replica.command("HLEN", "hf2:{q}:queue:messages") == 2
    with pytest.raises(holdfast.QueueFull):
        queue.publish("z")
    replica.kill()
    primary.command("FLUSHALL")


@pytest.mark.parametrize("face", ["blocking"])
def test_an_invalid_value_of_confirm_is_refused(place):
    """As for a lock: the only value is `replicas`, and only on engines that have replicas."""
    with pytest.raises(InvalidConfig, match="replicas"):
        place.connect().queue("q", confirm="all")
    with holdfast.connect("memory://") as client, pytest.raises(InvalidConfig, match="no replicas"):
        client.queue("q", confirm="replicas")


@pytest.mark.parametrize("skew_s", [+SKEW_S, -SKEW_S])
def test_a_promoted_server_with_another_clock_declares_no_consumer_dead(replicated, tmp_path, skew_s):
    """T18: by its clock a short session expired long ago, and a long one is nearer its end. No message is reclaimed.

    A look that is late by more than it can be is answered by an amnesty. One that is less late finds leases of which a
    sixth is left at least: a beat comes after a third of the ttl, and what is late by less than half is no amnesty.
    """
    if not wallclock.available():
        pytest.skip(wallclock.missing())
    clock = wallclock.WallClock(tmp_path, "replica")
    clock.set(skew_s)
    primary, replica = replicated(clock.env)
    queues = {f"q{ttl_s}": ttl_s * 1000 for ttl_s in (2, 15, 40)}
    before, fences = Peer(primary.url), {}
    for name, ttl_ms in queues.items():
        before.send(Publish(name, "call", tuple(NewMessage(f"{number}", b"1") for number in range(8))))
        for token in ("one", "two"):
            before.send(Join(name, token, "", token, ttl_ms))
            fences[name] = before.send(Receive(name, token, 3)).deliveries[-1].fence
    until = time.monotonic() + 1
    while time.monotonic() < until:  # all are heard of, and somebody looks, as it is while all is well
        for name, ttl_ms in queues.items():
            before.send(look(name, ttl_ms))
            for token in ("one", "two"):
                assert before.send(ConsumerHeartbeat(name, token, ttl_ms)) == Renewed()
        time.sleep(0.1)
    in_step(primary, replica)
    promote(primary, replica)
    after = Peer(replica.url)

    found = {name: after.send(look(name, ttl_ms)) for name, ttl_ms in queues.items()}

    assert {name: (each.consumers, each.requeued, each.dead_lettered) for name, each in found.items()} == dict.fromkeys(
        queues, (0, 0, 0)
    )
    assert found["q2"].postponed
    for name, ttl_ms in queues.items():
        assert after.send(ConsumerHeartbeat(name, "one", ttl_ms)) == Renewed()
        (delivery,) = after.send(Receive(name, "two", 1)).deliveries
        assert delivery.fence > fences[name]
        for token in ("one", "two"):
            after.send(Leave(name, token))
    before.close()
    after.close()
    replica.command("FLUSHALL")


def walked(before, after, turn, **settings):
    """Run a check that starts on one server and goes on at the other; `turn` returns whether to switch."""
    peers, parts = [before], []

    async def ask(page):
        parts.append(page.part)
        if len(peers) == 1 and turn(parts):
            peers.append(after)
        return peers[-1].send(page)

    return run(check_consistency(ask, "q", **settings)), parts


def test_a_check_across_a_failover_reports_no_false_fault(replicated):
    """A message that was received on one server is ready on the other: seen on both, it would be in two places."""
    primary, replica = replicated()
    before, after = Peer(primary.url), Peer(replica.url)
    before.send(Publish("q", "call", (NewMessage("1", b"1"),)))
    before.send(Join("q", "t", "", "t", 60_000))
    in_step(primary, replica)
    cut_off(primary, replica)
    assert len(before.send(Receive("q", "t", 1)).deliveries) == 1

    def turn(parts):
        if parts[-1] == DELAYED:
            promote(primary, replica)
        return parts[-1] == DELAYED

    taken_again = []
    found, parts = walked(before, Taker(after, taken_again), turn)

    assert found == (1, ())
    assert parts.count(MESSAGES) == 2, "it was not begun again"
    assert taken_again
    before.close()
    after.close()
    replica.command("FLUSHALL")


class Taker:
    """Receive a message once the check has read the lanes: by then it was read in one."""

    def __init__(self, peer, taken):
        self._peer, self._taken, self._lanes_read = peer, taken, False

    def send(self, page):
        if self._lanes_read and not self._taken and page.part == CONSUMERS:
            self._taken.extend(self._peer.send(Receive("q", "t", 1)).deliveries)
        self._lanes_read = self._lanes_read or page.part == READY
        return self._peer.send(page)


def test_a_check_across_a_failover_finds_every_fault(replicated):
    """A scan cursor means another place on another server: the check would skip entries."""
    primary, replica = replicated()
    before, after, count = Peer(primary.url), Peer(replica.url), 2000
    for first in range(0, count, BATCH_MAX):
        drafts = tuple(NewMessage(f"{number}", b"1") for number in range(first, min(count, first + BATCH_MAX)))
        before.send(Publish("q", f"call {first}", drafts))
    for _ in range(100):
        primary.command("LPOP", "hf2:{q}:queue:ready:")
    in_step(primary, replica)

    def turn(parts):
        if len(parts) == 10:
            promote(primary, replica)
        return len(parts) >= 10

    found, parts = walked(before, after, turn, most=50)

    assert len(parts) > 20
    assert found == (count, ("100 messages are in no place",))
    before.close()
    after.close()
    replica.command("FLUSHALL")


def test_a_check_that_never_stays_on_one_server_gives_up(replicated):
    """It raises, and does not report a consistent queue."""
    primary, replica = replicated()
    peers = Peer(primary.url), Peer(replica.url)

    async def ask(page):
        return random.choice(peers).send(page)

    with pytest.raises(Unavailable, match="another server") as trouble:
        run(check_consistency(ask, "q"))
    assert trouble.value.retryable
    for peer in peers:
        peer.close()


def look(name, ttl_ms):
    """Return the reclaim command that a client with this ttl would send."""
    with holdfast.connect("memory://") as client:
        return client.queue(name, ttl=ttl_ms / 1000)._core.reclaim_command()


def test_dead_consumers_are_found_in_time_after_the_clock_went_back(new_server, connect, tmp_path):
    """By that clock the session expires in an hour; it is shortened to a ttl from the first check."""
    if not wallclock.available():
        pytest.skip(wallclock.missing())
    clock = wallclock.WallClock(tmp_path, "server")
    server = new_server(env=clock.env)
    queue, peer = connect(server).queue("q", ttl=1, grace=0), Peer(server.url)
    queue.publish("x")
    peer.send(Join("q", "doomed", "", "doomed", 1000))
    assert len(peer.send(Receive("q", "doomed", 1)).deliveries) == 1
    peer.send(ReclaimExpired("q", 200, 0, 1000, 5))
    clock.set(-3600)
    with queue.consumer() as successor:
        (message,) = successor.receive(timeout=30)
        message.ack()
    peer.close()
    server.command("FLUSHALL")


def test_the_same_reclaim_finds_the_dead_with_a_right_clock(replicated):
    """The control: a promoted server does not postpone for ever."""
    primary, replica = replicated()
    before = Peer(primary.url)
    before.send(Publish("q", "call", (NewMessage("1", b"1"),)))
    before.send(Join("q", "doomed", "", "doomed", 300))
    assert len(before.send(Receive("q", "doomed", 1)).deliveries) == 1
    before.send(ReclaimExpired("q", 200, 0, 300, 5))
    in_step(primary, replica)
    promote(primary, replica)
    after = Peer(replica.url)
    moved = 0

    def found():
        nonlocal moved
        moved += after.send(ReclaimExpired("q", 200, 0, 300, 5)).requeued
        return moved

    eventually(found, 10, "a death that is found")
    before.close()
    after.close()
    replica.command("FLUSHALL")
