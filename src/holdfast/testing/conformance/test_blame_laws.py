"""The blame for the death of an owner: new messages take it, and if there were several, none of them for certain."""

import time

import pytest

from holdfast import (
    Backoff,
)
from holdfast.commands.queue import (
    COSTLY_BATCH_MAX,
    ConsumerHeartbeat,
    Join,
    Leave,
    NewMessage,
    Publish,
    Receive,
    ReclaimExpired,
    TakeOver,
)
from holdfast.commands.queue_admin import GetStats
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import passing
from holdfast.testing.conformance.ownership_steps import TTL_S, added, open_sessions, sessions

pytestmark = pytest.mark.capability("queues")

NOW = Backoff(0, 1, 0, 0)


def test_messages_in_quarantine_come_in_groups_that_grow_while_their_owner_lives(face):
    """A fleet that died twice leaves hundreds in quarantine: one at a time would take hours.

    A message that kills is soon alone.
    """
    client = face.connect()
    queue, peer, wire = sessions(client, ttl=0.6), face.peer(), face.wire(client)
    open_sessions(queue, 12)
    reclaim = ReclaimExpired("sessions", 100, 0, 100, 5)
    for token in ("first death", "second death"):
        peer.say(Join("sessions", token, "", token, 1, keeps_messages=True))
        assert len(peer.say(Receive("sessions", token, 12)).deliveries) == 12
        eventually(lambda: peer.say(reclaim) and not queue.stats().in_flight, 20, "a death that is found")
    assert queue.stats().quarantined == 12
    with queue.owner() as owner:
        assignments = added(owner, 12)
        assert all(work.quarantined for work in assignments)
        dared = [command.quarantine_max for command in wire.commands(Receive) if command.quarantine_max]
        assert sorted(set(dared) - {10}) == [1, 2, 4, 8]
        for work in assignments:
            work.ack()
    assert queue.stats().counts["acked"] == 12


def test_several_messages_in_quarantine_take_no_blame_and_a_single_one_does(engine):
    """If their owner dies, the cause is unclear; the fewer there are, the sooner it is found."""
    peer = engine.peer()
    reclaim = ReclaimExpired("sessions", 100, 0, 100, 2)
    drafts = tuple(NewMessage(f"id{number}", b"x", key=f"k{number}") for number in range(3))
    peer.say(Publish("sessions", "call", drafts))

    def dies(token, idle):
        peer.say(Join("sessions", token, "", token, 1, keeps_messages=True))
        taken = peer.say(Receive("sessions", token, 3, quarantine_max=idle)).deliveries
        eventually(lambda: peer.say(reclaim) and not peer.say(GetStats("sessions")).held, 20, "a death that is found")
        return [(each.message.attempts, each.message.crashes, each.quarantined) for each in taken]

    assert dies("one", 1) == [(0, 0, False)] * 3
    assert dies("two", 1) == [(0, 1, False)] * 3
    assert dies("three", 3) == [(0, 2, True)] * 3
    assert dies("four", 1) == [(0, 3, True)]
    assert peer.say(GetStats("sessions")).dead == 0
    assert dies("five", 3) == [(0, 3, True), (0, 3, True), (1, 3, True)]
    assert dies("six", 1) == [(0, 4, True)]
    assert dies("seven", 1) == [(0, 4, True)]
    assert dies("eight", 1) == [(1, 4, True)]
    assert peer.say(GetStats("sessions")).dead == 1


def test_an_owner_never_has_two_messages_from_quarantine_in_their_blame_window(face):
    """The second comes after a heartbeat since the first: if it kills at once, the first takes no blame."""
    client = face.connect()
    queue, peer, wire = sessions(client), face.peer(), face.wire(client)
    open_sessions(queue, 2)
    reclaim = ReclaimExpired("sessions", 100, 0, 100, 5)
    for token in ("first death", "second death"):
        peer.say(Join("sessions", token, "", token, 1, keeps_messages=True))
        assert len(peer.say(Receive("sessions", token, 2)).deliveries) == 2
        eventually(lambda: peer.say(reclaim) and not queue.stats().in_flight, 20, "a death that is found")
    assert queue.stats().quarantined == 2
    with queue.owner() as owner:
        time.sleep(TTL_S / 6)  # between two heartbeats
        added(owner, 1)
        got = time.monotonic()
        assert queue.stats().quarantined == 1
        added(owner, 1)
        asked = wire.moments(Receive)[-1]
        assert any(got + TTL_S / 3 - 0.05 <= heartbeat <= asked for heartbeat in wire.moments(ConsumerHeartbeat))
    assert queue.check()


@pytest.mark.acceptance("A1-6")
def test_only_new_messages_take_the_blame_for_the_death_of_an_owner(timed):
    """A stream that was owned for long has proved harmless: it is reassigned as often as pods die."""
    queue = sessions(timed.connect(), max_attempts=3)
    peer = timed.peer()
    open_sessions(queue, 3)
    for death in range(4):
        token = f"pod-{death}"
        peer.say(Join("sessions", token, "", token, 1000, keeps_messages=True))
        assert len(peer.say(Receive("sessions", token, 9, quarantine_max=True)).deliveries) == 3
        for _ in range(3):
            timed.clock.advance(0.5)
            peer.say(ConsumerHeartbeat("sessions", token, 1000))
        with queue.owner("watching", most=1) as watching, passing(timed.clock):
            eventually(lambda: queue.stats().in_flight == 0, what="a death that is found")
            assert watching.owned == 0
    assert queue.stats().ready == 3
    assert all(seen.attempts == seen.crashes == 0 for seen in queue.peek())


def test_a_consumer_that_is_being_reclaimed_in_steps_cannot_come_back(engine):
    """It would go on with half of its messages, and believe that it has all."""
    peer = engine.peer()
    names = [f"{part}-{number}" for part in range(2) for number in range(128)]
    for part in (names[:128], names[128:]):
        peer.say(Publish("sessions", part[0], tuple(NewMessage(f"id {name}", b"x", key=name) for name in part)))
    peer.say(Join("sessions", "doomed", "", "doomed", 100, keeps_messages=True))
    for _ in range(2):
        assert len(peer.say(Receive("sessions", "doomed", 128)).deliveries) == 128
    peer.say(ReclaimExpired("sessions", 100, 0, 100, 5))

    def fallen():
        return peer.say(ReclaimExpired("sessions", 100, 0, 100, 5)).requeued == COSTLY_BATCH_MAX - 1

    eventually(fallen, 20, "a death that is found")
    assert type(peer.say(ConsumerHeartbeat("sessions", "doomed", 1000))).__name__ == "NotHeld"
    assert type(peer.say(Receive("sessions", "doomed", 1))).__name__ == "NotHeld"
    assert type(peer.say(TakeOver("sessions", "doomed", names[0], 5))).__name__ == "NotHeld"
    assert type(peer.say(Leave("sessions", "doomed"))).__name__ == "NotHeld"
