"""Rules that inspect a queue: statistics, consumers, peeked messages, consistency. They change nothing."""

from __future__ import annotations

from holdfast.commands.queue_admin import (
    CheckConsistency,
    ConsistencyChecked,
    ConsumerInfo,
    ConsumerList,
    GetStats,
    ListConsumers,
    Peek,
    Peeked,
    QueueCounts,
)
from holdfast.rules.lease_record import Moment
from holdfast.rules.queue.messages import due_ms
from holdfast.rules.queue.state import QueueState
from holdfast.rules.result import RuleResult


def get_stats(state: QueueState, command: GetStats, moment: Moment) -> RuleResult:  # noqa: ARG001 - as all rules
    """Return how many messages are in each place, and the counters."""
    totals = state.totals()
    oldest_ms = max(0, moment.wall_us - totals.oldest_us) // 1000 if totals.oldest_us else -1
    answer = QueueCounts(
        totals.ready,
        totals.quarantined,
        totals.delayed,
        totals.held,
        totals.dead,
        totals.waiting,
        totals.consumers,
        oldest_ms,
        due_ms(state, moment),
        totals.counts,
        totals.behind,
    )
    return RuleResult(answer, [])


def list_consumers(state: QueueState, command: ListConsumers, moment: Moment) -> RuleResult:
    """Return the consumers, the first to expire first."""
    consumers = [
        ConsumerInfo(
            consumer.token,
            consumer.label,
            consumer.holder,
            consumer.fence,
            held,
            (moment.now_us - consumer.since_us) // 1000,
            max(0, consumer.expires_us - moment.now_us) // 1000,
        )
        for consumer, held in state.list_consumers(command.limit)
    ]
    return RuleResult(ConsumerList(tuple(consumers)), [])


def peek(state: QueueState, command: Peek, moment: Moment) -> RuleResult:
    """Return the first messages of a place without moving them."""
    return RuleResult(Peeked(tuple(state.peek(command.place, command.limit, command.lane, moment.wall_us))), [])


def check_consistency(state: QueueState, command: CheckConsistency, moment: Moment) -> RuleResult:  # noqa: ARG001
    """Check that every message is in exactly one place."""
    messages, faults = state.check_consistency()
    return RuleResult(ConsistencyChecked(messages, tuple(faults)), [])
