"""Commands of pools and queues: open what is stored, see who has died, ask the law, write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.commands.queue_admin import ConsistencyChecked
from holdfast.engines.sqlite import lease_rows as rows
from holdfast.engines.sqlite.pool import StoredPool
from holdfast.engines.sqlite.queue import StoredQueue
from holdfast.rules.pool import POOL_RULES
from holdfast.rules.queue import QUEUE_RULES
from holdfast.rules.trust import MARK_MS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from holdfast.commands.queue_admin import CheckConsistency
    from holdfast.engines import Reply
    from holdfast.rules.lease_record import Moment
    from holdfast.rules.result import RuleResult

PARTS = POOL_RULES.keys() | QUEUE_RULES.keys()


class Seen(NamedTuple):
    """Another client, as this transaction sees it."""

    client: str
    marked_us: int
    gone: bool


def deal(
    link: sqlite3.Cursor, command: Any, moment: Moment, look_at: Callable[[str], Seen], memory_us: int
) -> RuleResult:
    """The answer, and whom to ring."""
    of_part = _of_pool if type(command) in POOL_RULES else _of_queue
    return of_part(link, command, moment, look_at, memory_us)


def _of_pool(
    link: sqlite3.Cursor, command: Any, moment: Moment, look_at: Callable[[str], Seen], memory_us: int
) -> RuleResult:
    """A dead borrower's item comes back by its ttl: only waiters are looked at."""
    stock = StoredPool(link, command.kind, command.name)
    seen = [look_at(client) for client in stock.watched() - {moment.client}]
    gone = frozenset(state.client for state in seen if state.gone)
    silent = frozenset(state.client for state in seen if state.marked_us < moment.now_us - MARK_MS * 1000)
    dealt = POOL_RULES[type(command)](stock, command, moment._replace(gone=gone, silent=silent))
    stock.save(moment.now_us, memory_us)
    return dealt


def _of_queue(
    link: sqlite3.Cursor, command: Any, moment: Moment, look_at: Callable[[str], Seen], memory_us: int
) -> RuleResult:
    """A consumer whose process has ended is dead at once."""
    state = StoredQueue(link, command.name)
    others = state.concerned(command) - {moment.client}
    gone = frozenset(client for client in others if look_at(client).gone)
    dealt = QUEUE_RULES[type(command)](state, command, moment._replace(gone=gone))
    state.save(moment.wall_us, memory_us)
    return dealt


def audited(link: sqlite3.Cursor, command: CheckConsistency, open_gate: Callable[[], None]) -> Reply:
    """It may take long, and changes nothing: so it looks at one instant of the file, while the gate is open for others.

    The instant is that of the first question. Whoever has the connection ends the transaction.
    """
    link.execute("BEGIN")
    if link.execute("SELECT 1 FROM queue WHERE name = ?", (command.name,)).fetchone() is None:
        return ConsistencyChecked(0, ())
    open_gate()
    try:
        messages, faults = StoredQueue(link, command.name).check_consistency()
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        return rows.unreadable(command.name, error)
    return ConsistencyChecked(messages, tuple(faults))
