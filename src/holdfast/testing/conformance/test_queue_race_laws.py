"""An outcome and a reclaim at the same instant: one of them wins, and the other learns it."""

import os
import random
import threading
import time

import pytest

from holdfast.commands.queue import (
    ACK,
    BATCH_MAX,
    Join,
    Leave,
    MessageOutcome,
    NewMessage,
    Publish,
    Receive,
    ReclaimExpired,
    RecordOutcomes,
)
from holdfast.commands.queue_admin import GetStats

pytestmark = pytest.mark.capability("queues")

# `make trials` has ten thousand.
ROUNDS = int(os.environ.get("HOLDFAST_ROUNDS", "120"))


class Runner:
    """Threads that each do one thing, all at the same instant."""

    def __init__(self, count):
        self._barrier = threading.Barrier(count, timeout=60)

    def race(self, *actions):
        answers = [None] * len(actions)

        def run(at, action):
            self._barrier.wait()
            time.sleep(random.choice((0, 0, 0.0002, 0.001)))
            answers[at] = action()

        threads = [threading.Thread(target=run, args=each) for each in enumerate(actions)]
        random.shuffle(threads)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers


@pytest.mark.acceptance("A1-10")
@pytest.mark.timeout(1200 if ROUNDS > 1000 else 120)
def test_an_outcome_and_two_reclaims_at_the_same_instant_have_one_result(engine):
    """T23: the message is finished, or requeued. Never both, never neither, and the late consumer knows which."""
    owner, *lookers = (engine.peer() for _ in range(3))
    runner, outcomes = Runner(3), {"done": 0, "again": 0}
    for number in range(ROUNDS):
        name = f"race/{number}"
        owner.say(Join(name, "owner", "", "owner", 1))
        owner.say(Publish(name, "call", (NewMessage("message", b"1"),)))
        ((entry, *_),) = owner.say(Receive(name, "owner", 1)).deliveries
        time.sleep(0.002)  # its ttl is over: the first command wins

        answer, *looks = runner.race(
            lambda name=name, entry=entry: owner.say(RecordOutcomes(name, "owner", (MessageOutcome(entry, ACK),))),
            *(lambda name=name, peer=peer: peer.say(ReclaimExpired(name, 1000, 0, 1000, 5)) for peer in lookers),
        )

        moved, lost = sum(look.requeued for look in looks), answer.lost == (entry,)
        now = owner.say(GetStats(name))
        assert (moved, now.ready, dict(now.counts).get("acked", 0)) == ((1, 1, 0) if lost else (0, 0, 1))
        assert (now.held, now.dead, owner.audit(name).faults) == (0, 0, ())
        outcomes["again" if lost else "done"] += 1
        owner.say(Join(name, "end", "", "end", 60_000))
        rest = owner.say(Receive(name, "end", 1)).deliveries
        owner.say(RecordOutcomes(name, "end", tuple(MessageOutcome(each.entry, ACK) for each in rest)))
        owner.say(Leave(name, "end"))

    assert min(outcomes.values()) > 0, f"only one of them ever came first: {outcomes}"


@pytest.mark.acceptance("A1-10")
def test_constant_checks_find_nothing_between_a_message_and_its_end(engine):
    """An outcome is one step: no check, however frequent, meets a message that is finished and still held."""
    owner, looker = engine.peer(), engine.peer()
    owner.say(Join("jobs", "owner", "", "owner", 60_000))
    over, looked = threading.Event(), []

    def look():
        while not over.is_set():
            looked.append(looker.say(ReclaimExpired("jobs", 1, 0, 1, 5)))

    looking = engine.start(look)
    for call in range(4):
        owner.say(
            Publish("jobs", f"{call}", tuple(NewMessage(f"{call}/{number}", b"1") for number in range(BATCH_MAX)))
        )
        taken = owner.say(Receive("jobs", "owner", BATCH_MAX)).deliveries
        for each in taken[::8]:
            assert owner.say(RecordOutcomes("jobs", "owner", (MessageOutcome(each.entry, ACK),))).lost == ()
        rest = tuple(MessageOutcome(each.entry, ACK) for each in taken if each not in taken[::8])
        assert owner.say(RecordOutcomes("jobs", "owner", rest)).lost == ()
    over.set()
    looking.result()
    owner.say(Leave("jobs", "owner"))

    assert len(looked) > 10
    assert sum(look.requeued + look.dead_lettered + look.consumers for look in looked) == 0
    now = owner.say(GetStats("jobs"))
    assert (now.ready, now.held, now.consumers) == (0, 0, 0)
    assert dict(now.counts) == {"acked": 4 * BATCH_MAX, "published": 4 * BATCH_MAX, "received": 4 * BATCH_MAX}
