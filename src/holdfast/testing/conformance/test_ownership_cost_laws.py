"""The cost of owners: small, however many keys and partitions they have; and no owner waits for a recheck."""

import time

import pytest

from holdfast import Assigned, OwnerStopped
from holdfast.commands.queue import ConsumerHeartbeat, Receive, RecordOutcomes
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together
from holdfast.testing.conformance.ownership_steps import TTL_S, added, open_sessions, sessions

pytestmark = pytest.mark.capability("queues")


@together
def test_a_hundred_keys_cost_as_many_heartbeats_as_one(face):
    """One session covers all of them."""
    client = face.connect()
    queue = sessions(client)
    wire = face.wire(client)
    with queue.owner() as owner:
        counts = []
        for count in (1, 99):
            queue.publish_many(range(count), key=lambda number, c=count: f"{c}/{number}")
            added(owner, count)
            before, began = len(wire.commands(ConsumerHeartbeat)), time.monotonic()
            while time.monotonic() - began < 2 * TTL_S:
                assert owner.next(TTL_S / 4) is None
            counts.append(len(wire.commands(ConsumerHeartbeat)) - before)
        assert owner.owned == 100
        assert 2 <= counts[1] <= counts[0] + 3


def test_an_event_in_one_partition_costs_nothing_in_the_others(face):
    """A key that ends is one command, however many partitions its owner has."""
    client = face.connect()
    whole = sessions(client, ttl=30).partitioned(8)
    open_sessions(whole, 6)
    with whole.owner() as owner:
        assignments = added(owner, 6)
        waiting = face.start(lambda: owner.next(20))
        eventually(lambda: whole.stats().waiting == 8, 5, "an owner that waits in all parts")
        time.sleep(0.5)  # its listener has started: after that it fetches once more
        wire = face.wire(client)
        for work in assignments:
            work.ack()
        open_sessions(whole, 1)
        assert isinstance(waiting.result(), Assigned)
        assert len(wire.commands(RecordOutcomes)) == 6
        assert len(wire.commands(Receive)) <= 4


def test_a_full_owner_passes_its_wake_up_on(face):
    """It was woken for a key that it has no room for: others need not wait for their recheck."""
    whole, other = (sessions(face.connect(), ttl=30).partitioned(2) for _ in range(2))
    keys = {whole.part(key).name: key for key in ("a", "b", "c", "d", "e")}
    with whole.owner(most=1) as first, other.owner() as second:
        one, two = keys.values()
        waiting = face.start(lambda: first.next(20))
        eventually(lambda: whole.stats().waiting == 2, 5, "one that waits in both parts")
        whole.publish(1, key=one)
        assert waiting.result().assignment.key == one
        more = face.start(lambda: first.next(20))
        successor = face.start(lambda: second.next(20))
        eventually(lambda: whole.part(two).stats().waiting == 2, 5, "two that wait")
        time.sleep(0.5)  # until their listeners have started
        began = time.monotonic()
        whole.publish(2, key=two)
        assert successor.result().assignment.key == two
        assert time.monotonic() - began < 3
        first.stop()
        assert more.result() == OwnerStopped("stopped")
