"""No step of a queue holds up its server for long: the largest of each kind, by the server's own processor time.

Time on the wall says who else uses the machine; what a script costs is what the server's thread has worked. A script
that is slow by its work is slow in every run, so half of them count. `make trials` has the bound.
"""

import itertools
import os
import statistics
import sys
import time

import pytest
from redis_faces import Peer

from holdfast.commands import Released
from holdfast.commands.queue import (
    ACK,
    BATCH_MAX,
    COSTLY_BATCH_MAX,
    REJECT,
    RETRY,
    Join,
    Leave,
    LeaveUnfinished,
    ListDeadLetters,
    MessageOutcome,
    NewMessage,
    Publish,
    Receive,
    ReclaimExpired,
    RecordOutcomes,
    Redrive,
)
from holdfast.commands.queue_admin import GetStats
from holdfast.core.queue.queue import check_consistency
from holdfast.core.step import run
from holdfast.testing import eventually

LARGE = os.environ.get("HOLDFAST_FLEETS") == "large"
TIMES = 20 if LARGE else 3
LONG_MS = 2
NUMBERS = itertools.count()

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells the processor time of others"),
]


@pytest.fixture
def steps(one_server):
    steps = Steps(one_server)
    yield steps
    steps.close()


class Steps:
    """Send commands to an otherwise idle server, and measure its processor time for each, in milliseconds."""

    def __init__(self, server):
        self.server, self.peer, self.spent = server, Peer(server.url), {}

    def send(self, command):
        return self.peer.send(command)

    def timed(self, what, command):
        before = self._worked_ns()
        answer = self.send(command)
        self.spent.setdefault(what, []).append((self._worked_ns() - before) / 1e6)
        return answer

    def _worked_ns(self):
        return time.clock_gettime_ns(~self.server.pid << 3 | 2)  # the clock of another process: clock_getcpuclockid(3)

    def fill(self, count, *, each=1):
        """Publish messages with keys, the same number for each key."""
        for first in range(0, count, BATCH_MAX):
            names = [f"{next(NUMBERS)}" for _ in range(min(BATCH_MAX, count - first))]
            for _ in range(each):
                drafts = tuple(NewMessage(f"{next(NUMBERS)}", b"x" * 100, key=name) for name in names)
                self.timed("publish", Publish("q", f"{next(NUMBERS)}", drafts))

    def taken(self, token, count):
        found = []
        while len(found) < count:
            what = "take" if count > 1 else "take one"
            deliveries = self.timed(what, Receive("q", token, min(BATCH_MAX, count - len(found)))).deliveries
            assert deliveries
            found += deliveries
        return found

    def finish(self, what, found, kind, delay_ms=0):
        """Record outcomes as a worker does for messages with keys: half as many at once."""
        for first in range(0, len(found), COSTLY_BATCH_MAX):
            part = found[first : first + COSTLY_BATCH_MAX]
            error = "" if kind == ACK else "some error, " * 5
            outcomes = tuple(
                MessageOutcome(each.entry, kind, delay_ms, "why" if kind == REJECT else "", error) for each in part
            )
            assert self.timed(what, RecordOutcomes("q", "worker", outcomes)).lost == ()

    def reaped(self, what, count, attempts_max):
        """Let consumers die with many messages, reclaim them in parts, and return the size of each part."""
        parts, back = [], 0
        while back < count:  # a look before its time finds nothing, and one that is late is an amnesty
            answer = self.timed(what, ReclaimExpired("q", 1, 0, 1, attempts_max))
            parts.append(answer.requeued + answer.dead_lettered + answer.consumers)
            back += answer.requeued + answer.dead_lettered
            time.sleep(answer.next_ms / 1000)
        return parts

    def left(self, token, count):
        """Let a consumer leave in parts, and return the size of each part but the last."""
        parts, others = [], self.send(GetStats("q")).held - count
        while (answer := self.timed("leave with much", Leave("q", token))) == LeaveUnfinished():
            parts.append(count + others - sum(parts) - self.send(GetStats("q")).held)
        assert answer == Released()
        return parts

    def checked(self):
        """Check the whole queue, page by page."""

        async def ask(page):
            return self.timed(f"check of {page.part}", page)

        return run(check_consistency(ask, "q"))

    def close(self):
        self.peer.close()
        self.server.command("FLUSHALL")


def test_no_step_is_long_however_much_there_is_to_do(steps):
    """T27: messages of dead consumers are reclaimed in parts, and each part is small in messages and in consumers."""
    many, parts = TIMES * COSTLY_BATCH_MAX, []
    steps.fill(many)
    steps.send(Join("q", "rich", "", "rich", 1))
    steps.taken("rich", many)
    parts += steps.reaped("bring back what one had", many, 5)
    for number in range(many):
        steps.send(Join("q", f"poor {number}", "", "poor", 1))
        steps.taken(f"poor {number}", 1)
    parts += steps.reaped("bury what many had", many, 1)
    letters = steps.send(ListDeadLetters("q", "", many)).dead_letters
    for first in range(0, many, COSTLY_BATCH_MAX):
        ids = tuple(letter.message.id for letter in letters[first : first + COSTLY_BATCH_MAX])
        assert len(steps.timed("redrive", Redrive("q", ids, True, f"{next(NUMBERS)}")).ids) == len(ids)

    steps.send(Join("q", "worker", "", "worker", 600_000))
    steps.finish("ack", steps.taken("worker", many), ACK)
    steps.fill(many, each=2)
    for _ in range(TIMES):
        assert steps.checked() == (2 * many, ())
    steps.finish("ack of those with others behind", steps.taken("worker", many), ACK)
    steps.finish("retry", steps.taken("worker", many), RETRY, 1)
    eventually(lambda: steps.timed("take of what is due", Receive("q", "worker", BATCH_MAX)).deliveries == (), 30)
    for number in range(TIMES):
        steps.fill(BATCH_MAX)
        steps.send(Join("q", f"guest {number}", "", "guest", 60_000))
        steps.taken(f"guest {number}", BATCH_MAX)
        steps.timed("leave", Leave("q", f"guest {number}"))
    steps.send(Join("q", "rich guest", "", "guest", 60_000))
    left = steps.left("rich guest", len(steps.taken("rich guest", TIMES * BATCH_MAX)))
    steps.finish("dead", steps.taken("worker", many), REJECT)

    assert max(parts) == COSTLY_BATCH_MAX
    assert left == [BATCH_MAX] * (TIMES - 1)
    middle = {what: statistics.median(spent) for what, spent in steps.spent.items()}
    print()
    for what, spent in steps.spent.items():
        print(f"{what}: {middle[what]:.2f} ms, at most {max(spent):.2f} ms, of {len(spent)} times")
    if LARGE:
        assert max(middle.values()) < LONG_MS, middle
