"""All dead letters are those that are there now: what dies meanwhile waits for the next call."""

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


def bury(peer, call, count):
    """So many letters more, by whoever is alone with the queue."""
    peer.say(Join("jobs", "digger", "", "digger", 60_000))
    peer.say(Publish("jobs", call, tuple(NewMessage(f"{call} {number}", b"1") for number in range(count))))
    taken = peer.say(Receive("jobs", "digger", count)).deliveries
    peer.say(
        RecordOutcomes("jobs", "digger", tuple(MessageOutcome(each.entry, REJECT, reason="no use") for each in taken))
    )


@pytest.mark.parametrize("deed", ["redrive", "purge"])
def test_letters_that_come_meanwhile_are_left(face, deed):
    """A handler that fails at once would keep a redrive busy for ever; a purge would forget what nobody has seen.

    On one engine at a time: what `where` does is done on the loop, and would keep the other engines from theirs.
    """
    peer, queue, seen = face.peer(), face.connect().queue("jobs"), []
    bury(peer, "old", BATCH_MAX)

    def look(letter):
        if not seen:
            bury(peer, "new", 1)
        seen.append(letter.id)
        return True

    assert getattr(queue.dlq, deed)(where=look) == BATCH_MAX
    assert len(seen) == BATCH_MAX
    assert [each.id for each in queue.dlq.list()] == ["new 0"]
