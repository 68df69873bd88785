"""Redis at `maxmemory`: new work is refused with the reason, freeing commands pass, and nothing acknowledged is lost.

Work continues as soon as there is memory, with the same clients. The policy is `noeviction`, the default.
"""

from __future__ import annotations

import pytest

from holdfast import Unavailable
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import Face
from holdfast.testing.conformance.fixtures import close_loop  # noqa: F401
from holdfast.testing.conformance.places import Place


class FullServer:
    """A server, one face of it, and its memory."""

    def __init__(self, server, face):
        self.server, self.face = server, face

    def fill(self):
        """Leave no memory: every command that may need some is refused."""
        self.server.command("CONFIG", "SET", "maxmemory", 1)

    def empty(self):
        self.server.command("CONFIG", "SET", "maxmemory", 0)


@pytest.fixture(params=["blocking", "asyncio"])
def full(request, server, new_server, tmp_path):
    """Return a server of its own, through one face."""
    server = new_server(server.kind)
    face = Face(Place("redis", f"{server.url}?namespace={{unique}}"), request.param, tmp_path / "face")
    yield FullServer(server, face)
    server.command("CONFIG", "SET", "maxmemory", 0)
    face.close()


def refused(call):
    with pytest.raises(Unavailable) as trouble:
        call()
    assert (trouble.value.reason, trouble.value.outcome) == ("full", "not started")


def test_leases_stay_exclusive_are_renewed_and_released(full):
    """A waiter gets its turn as soon as the holder releases."""
    client, other = full.face.connect(), full.face.connect()
    held = client.lock("x", ttl=1.0).acquire()
    full.fill()
    refused(lambda: client.lock("y").acquire(timeout=0))
    eventually(lambda: held.remaining() > 0.9, timeout=5)  # renewed at least once
    refused(lambda: other.lock("x").acquire(timeout=0))  # busy, but a full server cannot store the request
    held.release()
    assert client.show("x").holder is None
    full.empty()

    with other.lock("x", timeout=5) as next_lease:
        assert next_lease.fence > held.fence


def test_permits_and_items_are_returned(full):
    """An item that was returned on a full server is free, and no item is lent twice."""
    client = full.face.connect()
    pool, semaphore = client.pool("channels"), client.semaphore("gpu", permits=3)
    pool.set_items(["a", "b", "c"])
    items, permits = [pool.borrow(timeout=0) for _ in range(2)], [semaphore.acquire(timeout=0) for _ in range(2)]
    full.fill()
    refused(lambda: pool.add(["d"]))
    items[0].release()
    permits[0].release()
    full.empty()

    more = [pool.borrow(timeout=5) for _ in range(2)]
    assert sorted(item.name for item in (items[1], *more)) == ["a", "b", "c"]
    more += [semaphore.acquire(timeout=5) for _ in range(2)]
    assert semaphore.try_acquire() is None
    for lease in (items[1], permits[1], *more):
        lease.release()
    pool.set_items([])


def test_a_queue_keeps_every_message_and_acks_pass(full):
    """Publishing is refused; receiving, acking, releasing and dead-lettering pass."""
    client = full.face.connect()
    queue = client.queue("jobs")
    sent = [queue.publish({"n": number}) for number in range(30)]
    with queue.consumer(prefetch=40) as consumer:
        received = {message.id: message for message in consumer.receive(10, timeout=5)}
        full.fill()
        refused(lambda: queue.publish({"n": 99}))
        outcomes = iter(received.values())
        for _ in range(5):
            next(outcomes).ack()
        next(outcomes).release()
        next(outcomes).reject("broken")
        full.empty()
        for message in outcomes:
            message.ack()
        more = queue.publish({"n": 30})
        rest = []
        while len(rest) < 22:
            for message in consumer.receive(40, timeout=10):
                rest.append(message.id)
                message.ack()

    dead = [letter.id for letter in queue.dlq.list()]
    assert len(received) == 10
    assert sorted([*dead, *rest]) == sorted([list(received)[5], list(received)[6], *(set(sent) - set(received)), more])
    assert (queue.stats().ready, queue.dlq.purge()) == (0, 1)


def test_idempotency_keys_are_completed_and_stay_exact(full):
    """A key that was taken is done once; its result survives, and a new key is refused before its function runs."""
    client, runs = full.face.connect(), []
    once = client.once("payments")

    def work(key):
        runs.append(key)
        return f"done {key}"

    once.call("1", lambda: work("1"))
    with once.first("2") as first:
        full.fill()
        first.result = work("2")
    refused(lambda: once.call("3", lambda: work("3")))
    seen = [bool(once.seen(key)) for key in ("1", "2", "3")]
    full.empty()

    assert seen == [True, True, False]
    assert [once.call(key, lambda key=key: work(key)) for key in ("1", "2", "3")] == ["done 1", "done 2", "done 3"]
    assert runs == ["1", "2", "3"]


def test_limits_follow_their_policy_and_budgets_stay_exact(full):
    """A budget settles and refunds what it reserved; a limit decides by its policy and counts nothing."""
    client = full.face.connect()
    budget = client.budget("fees", limit=100)
    strict = client.limit("10/hour", name="strict", on_unavailable="deny")
    lax = client.limit("10/hour", name="lax", on_unavailable="allow")
    one, two = budget.reserve("ann", 40), budget.reserve("ann", 30)
    assert strict.hit("k").allowed
    full.fill()
    refused(lambda: budget.reserve("ann", 1))
    denied, allowed = strict.hit("k"), lax.hit("k")
    one.settle(25)
    two.refund()
    full.empty()

    assert (denied.allowed, allowed.allowed) == (False, True)
    assert budget.peek("ann")[:2] == (25, 0)
    eventually(lambda: strict.peek("k").remaining == 9, timeout=10)  # the policy decides for another second
    budget.reserve("ann", 75).refund()


def test_a_registry_keeps_its_entries_and_frees_them(full):
    """A claim is refused; entries are read and released, and a key has one owner."""
    client, other = full.face.connect(label="one"), full.face.connect(label="two")
    registry, theirs = client.registry("rooms", ttl=20), other.registry("rooms", ttl=20)
    kept, freed = registry.claim("kept"), registry.claim("freed")
    full.fill()
    refused(lambda: theirs.claim("new"))
    assert theirs.owner("kept").owner.label == "one"
    freed.release()
    listed = [entry.key for entry in theirs.list()]
    full.empty()

    assert listed == ["kept"]
    taken = theirs.claim("freed")
    assert theirs.owner("freed").owner.label == "two"
    for lease in (kept, taken):
        lease.release()


def test_acks_make_room_for_new_messages(full):
    """The messages themselves fill the memory. Nothing is reconfigured: the acks of a consumer free it."""
    client = full.face.connect()
    queue = client.queue("jobs", codec="bytes")
    used = full.server.command("INFO", "memory").decode().partition("used_memory:")[2].split()[0]
    full.server.command("CONFIG", "SET", "maxmemory", int(used) + 3_000_000)
    sent, is_full = [], False
    while not is_full:
        try:
            sent.append(queue.publish(b"x" * 50_000))
        except Unavailable as trouble:
            is_full = trouble.reason == "full"
        assert len(sent) < 1000

    received = []
    with queue.consumer(prefetch=20) as consumer:
        while len(received) < len(sent):
            for message in consumer.receive(20, timeout=10):
                received.append(message.id)
                message.ack()
        sent.append(queue.publish(b"x" * 50_000))
        for message in consumer.receive(1, timeout=10):
            received.append(message.id)
            message.ack()

    assert sorted(received) == sorted(sent)
    assert len(received) == len(set(received))
