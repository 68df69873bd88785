"""Handlers that block the whole process or a part of it, and the fate of their messages."""

from __future__ import annotations

import pytest
from queue_children import TTL_S

from holdfast.testing import eventually

WAIT_S = 60
STALL_S = 5 * TTL_S


@pytest.mark.parametrize("url", ["redis"], indirect=True)
def test_a_handler_that_blocks_the_loop_keeps_its_message_and_one_that_stops_all_threads_loses_it(
    client, start, journal
):
    """T6: the keeper is a thread, not a task.

    A handler that blocks only the loop keeps its session, however long it takes.

    No heartbeat leaves while one thread keeps the interpreter: such a process is declared dead after its ttl, as if it
    were frozen. Another worker does the work, and the late outcome is refused and reported.
    """
    queues = {kind: client.queue(kind, ttl=TTL_S, grace=0.3) for kind in ("loop", "gil")}
    stalled = {kind: start("stall", kind=kind, seconds=STALL_S, queue=kind) for kind in queues}
    for kind, queue in queues.items():
        queue.publish(kind)
        stalled[kind].wait_ready(WAIT_S)
    with queues["loop"].consumer() as idle, queues["gil"].consumer() as successor:
        (message,) = successor.receive(timeout=WAIT_S)
        assert (message.attempt, message.redelivered) == (2, True)
        message.ack()
        eventually(lambda: journal("refused"), WAIT_S, "a word that comes too late")
        eventually(lambda: [words for words in journal("done") if words[2] == "loop"], WAIT_S, "the end of the other")
        assert idle.receive(timeout=0) == []

    eventually(lambda: queues["loop"].stats().counts.get("acked") == 1, WAIT_S, "its word")
    assert [words[2] for words in journal("begun")].count("loop") == 1
    assert "crashed" not in queues["loop"].stats().counts
    assert queues["gil"].stats().counts["lost"] == 1
    assert all(queue.check() for queue in queues.values())
    assert all(child.alive for child in stalled.values())
