"""Commands of pools and queues: load the stored state, find out which clients died, apply the rule, write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.commands.queue_admin import ConsistencyChecked
from holdfast.engines.sqlite import lease_rows
from holdfast.engines.sqlite.pool import StoredPool
from holdfast.engines.sqlite.queue import StoredQueue
from holdfast.rules.table import RuleKind
from holdfast.rules.trust import HEARTBEAT_MS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from holdfast.commands.queue_admin import CheckConsistency
    from holdfast.engines import Reply
    from holdfast.rules.lease_record import Moment
    from holdfast.rules.result import RuleResult
    from holdfast.rules.table import Rule


class SessionState(NamedTuple):
    """Another client, as this transaction sees it. `gone`: its process is proven dead."""

    client: str
    heartbeat_us: int
    gone: bool


def apply(
    cursor: sqlite3.Cursor,
    rule: Rule,
    command: Any,
    moment: Moment,
    look_at: Callable[[str], SessionState],
    memory_us: int,
) -> RuleResult:
    """Apply the rule to the stored pool or queue; return the answer and the waiters to wake."""
    apply_to_state = _apply_to_pool if rule.kind is RuleKind.POOL else _apply_to_queue
    return apply_to_state(cursor, rule, command, moment, look_at, memory_us)


def _apply_to_pool(
    cursor: sqlite3.Cursor,
    rule: Rule,
    command: Any,
    moment: Moment,
    look_at: Callable[[str], SessionState],
    memory_us: int,
) -> RuleResult:
    """Apply the rule to a pool. Look only at waiters: the item of a dead borrower comes back by its ttl."""
    state = StoredPool(cursor, command.kind, command.name)
    seen = [look_at(client) for client in state.watched() - {moment.client}]
    gone = frozenset(each.client for each in seen if each.gone)
    silent = frozenset(each.client for each in seen if each.heartbeat_us < moment.now_us - HEARTBEAT_MS * 1000)
    result: RuleResult = rule.apply(state, command, moment._replace(gone=gone, silent=silent))
    state.save(moment.now_us, memory_us)
    return result


def _apply_to_queue(
    cursor: sqlite3.Cursor,
    rule: Rule,
    command: Any,
    moment: Moment,
    look_at: Callable[[str], SessionState],
    memory_us: int,
) -> RuleResult:
    """Apply the rule to a queue. A consumer whose process has ended counts as dead at once."""
    state = StoredQueue(cursor, command.name)
    others = state.concerned(command) - {moment.client}
    gone = frozenset(client for client in others if look_at(client).gone)
    result: RuleResult = rule.apply(state, command, moment._replace(gone=gone))
    state.save(moment.wall_us, memory_us)
    return result


def check_consistency(cursor: sqlite3.Cursor, command: CheckConsistency, open_gate: Callable[[], None]) -> Reply:
    """Check one snapshot of the file while the gate is open for others: the check may take long, and changes nothing.

    The first statement takes the snapshot. The caller, which has the connection, ends the transaction.
    """
    cursor.execute("BEGIN")
    if cursor.execute("SELECT 1 FROM queue WHERE name = ?", (command.name,)).fetchone() is None:
        return ConsistencyChecked(0, ())
    open_gate()
    try:
        messages, faults = StoredQueue(cursor, command.name).check_consistency()
    except lease_rows.DAMAGE as error:
        return lease_rows.unreadable(command.name, error)
    return ConsistencyChecked(messages, tuple(faults))
