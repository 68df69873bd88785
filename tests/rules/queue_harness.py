"""A queue in memory for tests of the rules, with a clock that the test moves."""

from holdfast.commands import Granted, Renewed
from holdfast.commands.queue import (
    ConsumerHeartbeat,
    Join,
    NewMessage,
    Publish,
    Receive,
    ReclaimExpired,
    RecordOutcomes,
)
from holdfast.commands.queue_admin import CheckConsistency, GetStats
from holdfast.rules import Moment
from holdfast.rules.queue.memory_state import MemoryQueueState
from holdfast.rules.table import RULES

START_US = 1_700_000_000_000_000
TTL_MS, GRACE_MS, INTERVAL_MS = 3000, 200, 500


class QueueHarness:
    """A queue, and the commands to it. The first letter of a consumer's token is its client."""

    def __init__(self):
        self.state, self.now_us, self.sent = MemoryQueueState(), START_US, 0

    def apply(self, client, command, after_ms=0, gone=()):
        self.now_us += after_ms * 1000
        moment = Moment(self.now_us, self.now_us, client, gone=frozenset(gone))
        return RULES[type(command)].apply(self.state, command, moment)

    def answer_to(self, client, command, **when):
        return self.apply(client, command, **when).answer

    def join(self, *tokens, ttl_ms=TTL_MS, keeps_messages=False):
        for token in tokens:
            assert isinstance(self.answer_to(token[0], Join("q", token, "", token, ttl_ms, keeps_messages)), Granted)

    def publish(self, *bodies, bound=0, **options):
        self.sent += 1
        drafts = tuple(NewMessage(body, body.encode(), **options) for body in bodies)
        return self.apply("p", Publish("q", f"call{self.sent}", drafts, bound))

    def receive(self, token, count=10, **options):
        return self.answer_to(token[0], Receive("q", token, count, **options))

    def received_ids(self, token, count=10, **options):
        return [each.message.id for each in self.receive(token, count, **options).deliveries]

    def outcomes_command(self, token, *outcomes, dead_max=0):
        return RecordOutcomes("q", token, outcomes, dead_max)

    def record(self, token, *outcomes, dead_max=0):
        return self.answer_to(token[0], self.outcomes_command(token, *outcomes, dead_max=dead_max))

    def reclaim(self, *, attempts_max=3, after_ms=0, gone=(), dead_max=0):
        command = ReclaimExpired("q", INTERVAL_MS, GRACE_MS, TTL_MS, attempts_max, dead_max)
        return self.answer_to("a", command, after_ms=after_ms, gone=gone)

    def checks_until(self, ms, *alive):
        """Let time pass with a check at every interval, while these consumers send heartbeats."""
        for _ in range(ms // INTERVAL_MS):
            for token in alive:
                assert self.answer_to(token[0], ConsumerHeartbeat("q", token, TTL_MS), after_ms=0) == Renewed()
            yield self.reclaim(after_ms=INTERVAL_MS)

    def advance(self, ms, *alive):
        return list(self.checks_until(ms, *alive))

    def consistent_counts(self):
        assert self.answer_to("a", CheckConsistency("q")).faults == ()
        return self.answer_to("a", GetStats("q"))
