"""A redrive or purge of all takes the dead letters that are there now: later ones wait for the next call."""

import pytest

from holdfast.commands.queue import (
    BATCH_MAX,
    REJECT,
    Join,
    MessageOutcome,
    NewMessage,
    Publish,
    Receive,
    RecordOutcomes,
)

pytestmark = pytest.mark.capability("queues")


def add_dead_letters(peer, call, count):
    """Add that many dead letters, as the only user of the queue."""
    peer.say(Join("jobs", "digger", "", "digger", 60_000))
    peer.say(Publish("jobs", call, tuple(NewMessage(f"{call} {number}", b"1") for number in range(count))))
    taken = peer.say(Receive("jobs", "digger", count)).deliveries
    peer.say(
        RecordOutcomes("jobs", "digger", tuple(MessageOutcome(each.entry, REJECT, reason="no use") for each in taken))
    )


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
