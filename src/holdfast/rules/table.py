"""The one table of rules: which rule decides the answer to which command, and which state the rule works on.

Engines call every rule as `rule.apply(state, command, moment)`. The kind defines the state and the return value:

- LEASE: the record of a lease; returns a `Step` with the new record, the answer and the waiter to wake.
- POOL, QUEUE: the state of a pool or queue, which the rule changes; returns a `RuleResult` with answer and wake-ups.
- COUNTER: a counter, or `None` if there is none; returns the new counter and the answer.
- COMBINED: the parts of one step (leases, counters, registries), which the rule changes; returns the answer.

An engine that runs the rules in Python dispatches by kind. The Redis engine has one Lua script for each command, and
tests compare each script with its rule.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast import commands
from holdfast.commands import queue as queue_commands
from holdfast.commands import queue_admin
from holdfast.rules import budget, lease, limit, once, pool, registry
from holdfast.rules.queue import consumers, dead_letters, inspection, messages


class RuleKind(StrEnum):
    """The state that a rule works on."""

    LEASE = "lease"
    POOL = "pool"
    QUEUE = "queue"
    COUNTER = "counter"
    COMBINED = "combined"

    __hash__ = str.__hash__  # an engine looks up a function by kind for every command; the hash of an enum is slow


class Rule(NamedTuple):
    """A rule, and the kind of state that it works on."""

    kind: RuleKind
    apply: Callable[[Any, Any, Any], Any]


def _of(kind: RuleKind, rules: dict[type, Callable[[Any, Any, Any], Any]]) -> dict[type, Rule]:
    return {command: Rule(kind, apply) for command, apply in rules.items()}


RULES: dict[type, Rule] = {
    **_of(
        RuleKind.LEASE,
        {
            commands.Acquire: lease.acquire,
            commands.Renew: lease.renew,
            commands.ReleaseLease: lease.release,
            commands.Undo: lease.undo,
            commands.Break: lease.break_,
            commands.WaiterHeartbeat: lease.waiter_heartbeat,
            commands.Show: lease.show,
            commands.WakeHolder: lease.wake_holder,
        },
    ),
    **_of(
        RuleKind.POOL,
        {
            commands.Borrow: pool.borrow,
            commands.Extend: pool.extend,
            commands.Return: pool.return_item,
            commands.UndoBorrow: pool.undo_borrow,
            commands.BreakItem: pool.break_item,
            commands.CoolItem: pool.cool_item,
            commands.ChangePool: pool.change,
            commands.PoolHeartbeat: pool.heartbeat,
            commands.GetPoolStats: pool.pool_stats,
        },
    ),
    **_of(
        RuleKind.QUEUE,
        {
            queue_commands.Publish: messages.publish,
            queue_commands.Join: consumers.join,
            queue_commands.ConsumerHeartbeat: consumers.heartbeat,
            queue_commands.Leave: consumers.leave,
            queue_commands.Receive: messages.receive,
            queue_commands.RecordOutcomes: messages.record_outcomes,
            queue_commands.ReclaimExpired: consumers.reclaim_expired,
            queue_commands.TakeOver: consumers.take_over,
            queue_commands.ListKeys: consumers.list_keys,
            queue_commands.ListDeadLetters: dead_letters.list_dead_letters,
            queue_commands.ListDeadPositions: dead_letters.list_dead_positions,
            queue_commands.GetDeadLetter: dead_letters.get_dead_letter,
            queue_commands.Redrive: dead_letters.redrive,
            queue_commands.Purge: dead_letters.purge,
            queue_admin.GetStats: inspection.get_stats,
            queue_admin.ListConsumers: inspection.list_consumers,
            queue_admin.Peek: inspection.peek,
            queue_admin.CheckConsistency: inspection.check_consistency,
        },
    ),
    **_of(
        RuleKind.COUNTER,
        {
            commands.Hit: limit.hit,
            commands.ResetCounter: limit.reset,
            commands.Reserve: budget.reserve,
            commands.Settle: budget.settle,
            commands.UndoReserve: budget.undo_reserve,
            commands.GetBalance: budget.balance,
            commands.MarkDone: once.mark_done,
            commands.IsDone: once.is_done,
        },
    ),
    **_of(
        RuleKind.COMBINED,
        {
            commands.BeginOnce: once.begin,
            commands.FinishOnce: once.finish,
            commands.ClaimEntry: registry.claim_entry,
            commands.ReleaseEntry: registry.release_entry,
            commands.ListEntries: registry.list_entries,
            commands.SendToOwner: registry.send_to_owner,
            commands.FetchMail: registry.fetch_mail,
        },
    ),
}


def commands_of(kind: RuleKind) -> tuple[type, ...]:
    """Return the commands whose rules work on this kind of state."""
    return tuple(command for command, rule in RULES.items() if rule.kind is kind)
