"""A redrive or purge of all takes the dead letters that are there now: later ones wait for the next call."""

import pytest

from holdfast.commands.queue import (
    BATCH_MAX,
    PAGE_BYTES,
    REJECT,
    GetDeadLetter,
    Join,
    ListDeadLetters,
    MessageOutcome,
    NewMessage,
    Publish,
    Purge,
    Receive,
    RecordOutcomes,
    Redrive,
)

pytestmark = pytest.mark.capability("queues")


def add_dead_letters(peer, call, count, body=b"1"):
    """Add that many dead letters, as the only user of the queue."""
    peer.say(Join("jobs", "digger", "", "digger", 60_000))
    peer.say(Publish("jobs", call, tuple(NewMessage(f"{call} {number}", body) for number in range(count))))
    while taken := peer.say(Receive("jobs", "digger", count)).deliveries:
        outcomes = tuple(MessageOutcome(each.entry, REJECT, reason="no use") for each in taken)
        peer.say(RecordOutcomes("jobs", "digger", outcomes))


@pytest.mark.parametrize("action", ["redrive", "purge"])
def test_dead_letters_that_come_in_the_meantime_are_left(face, action):
    """A handler that fails at once would keep a redrive busy for ever.

    A purge would delete dead letters that no user has seen.

    On one engine at a time: `where` runs on the loop, and would block the tests of other engines.
    """
    peer, queue, seen = face.peer(), face.connect().queue("jobs"), []
    add_dead_letters(peer, "old", BATCH_MAX)

    def look(dead_letter):
        if not seen:
            add_dead_letters(peer, "new", 1)
        seen.append(dead_letter.id)
        return True

    assert getattr(queue.dlq, action)(where=look) == BATCH_MAX
    assert len(seen) == BATCH_MAX
    assert [each.id for each in queue.dlq.list()] == ["new 0"]


@pytest.mark.finding("L1")
def test_no_step_reads_or_moves_many_large_dead_letters(face):
    """A page of 128 bodies of 1 MiB would not arrive in time, and would block the engine for others."""
    peer, client = face.peer(), face.connect()
    queue, wire, body = client.queue("jobs"), face.wire(client), b'"' + b"x" * (PAGE_BYTES // 2) + b'"'
    for number in range(5):
        add_dead_letters(peer, f"large {number}", 1, body)
    ids = [f"large {number} 0" for number in range(5)]

    first = peer.say(ListDeadLetters("jobs", "", 100))
    assert [each.message.id for each in first.dead_letters] == ids[:2]
    second = peer.say(ListDeadLetters("jobs", first.last, 100))
    assert [each.message.id for each in second.dead_letters] == ids[2:4]
    assert [each.id for each in queue.dlq.list()] == ids
    assert [each.id for each in queue.dlq.list(limit=3)] == ids[:3]

    assert peer.say(Redrive("jobs", tuple(ids), token="t")).ids == tuple(ids[:2])
    assert queue.dlq.redrive() == 3
    assert queue.stats().ready == 5
    assert queue.dlq.list() == []

    for each in peer.say(Receive("jobs", "digger", 1)).deliveries:
        peer.say(RecordOutcomes("jobs", "digger", (MessageOutcome(each.entry, REJECT, reason="no use"),)))
    wire.sent.clear()
    assert queue.dlq.purge() == 1
    assert wire.commands(ListDeadLetters) == wire.commands(GetDeadLetter) == [], "a purge of all reads no body"


@pytest.mark.finding("L1")
def test_a_purge_reads_bodies_only_for_a_function(face):
    """By time, by ids, and of all; a position that is gone removes nothing."""
    peer, client = face.peer(), face.connect()
    queue, wire = client.queue("jobs"), face.wire(client)
    add_dead_letters(peer, "old", 3)
    dead_letters = queue.dlq.list()
    assert peer.say(Purge("jobs", ("00000000000000000001-old 0",), by_position=True)).ids == ()
    assert peer.say(Purge("jobs", (dead_letters[0].position,) * 2, by_position=True)).ids == (dead_letters[0].position,)
    wire.sent.clear()
    assert queue.dlq.purge(before=dead_letters[1].died) == 0
    assert queue.dlq.purge(["old 1", "no such"]) == 1
    assert wire.commands(ListDeadLetters) == wire.commands(GetDeadLetter) == []
    assert queue.dlq.purge(where=lambda each: each.id == "old 2", before=dead_letters[2].died + 1) == 1
    assert queue.stats().dead == 0
    assert queue.stats().counts["purged"] == 3
    assert queue.check()
