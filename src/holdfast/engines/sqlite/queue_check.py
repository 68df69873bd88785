"""Check that every message of a stored queue is in exactly one place and in order, and that the totals are right.

The check reads every message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.rules.queue.memory_state import key_order_faults

if TYPE_CHECKING:
    import sqlite3

    from holdfast.rules.queue.state import QueueTotals

_OF_PLACE = "SELECT id FROM queue_message WHERE queue = ?1 AND place ="
_TWICE = f"""
SELECT id, count(*) FROM (
    {_OF_PLACE} 'ready' UNION ALL {_OF_PLACE} 'delayed' UNION ALL {_OF_PLACE} 'held' UNION ALL {_OF_PLACE} 'behind'
    UNION ALL SELECT id FROM queue_dead_letter WHERE queue = ?1
) GROUP BY id HAVING count(*) > 1
"""  # noqa: S608 - all texts stand here
_COUNT = "SELECT count(*) FROM queue_message WHERE queue = ? AND place ="
_COUNTS = {
    "ready": f"{_COUNT} 'ready' AND lane <> '!'",
    "quarantined": f"{_COUNT} 'ready' AND lane = '!'",
    "delayed": f"{_COUNT} 'delayed'",
    "held": f"{_COUNT} 'held'",
    "behind": f"{_COUNT} 'behind'",
    "dead": "SELECT count(*) FROM queue_dead_letter WHERE queue = ?",
    "waiting": "SELECT count(*) FROM queue_consumer WHERE queue = ? AND waiting IS NOT NULL",
    "consumers": "SELECT count(*) FROM queue_consumer WHERE queue = ?",
}
_WITHOUT_CONSUMER = """
SELECT count(*) FROM queue_message WHERE queue = ?1 AND place = 'held'
AND consumer NOT IN (SELECT token FROM queue_consumer WHERE queue = ?1) GROUP BY consumer
"""
_NO_PLACE = "SELECT count(*) FROM queue_message WHERE queue = ? AND place NOT IN ('ready', 'delayed', 'held', 'behind')"
_HEADS = "SELECT key, count(*) FROM queue_message WHERE queue = ? AND key <> '' AND place <> 'behind' GROUP BY key"
_KEYS_WITH_LINE = "SELECT DISTINCT key FROM queue_message WHERE queue = ? AND place = 'behind'"


def check(cursor: sqlite3.Cursor, queue: int, totals: QueueTotals) -> tuple[int, list[str]]:
    """Return the number of messages, dead letters included, and a sentence for each inconsistency."""
    counted = {what: cursor.execute(select, (queue,)).fetchone()[0] for what, select in _COUNTS.items()}
    faults = [f"message {one} is in {count} places" for one, count in cursor.execute(_TWICE, (queue,)).fetchall()]
    faults += [
        f"{row[0]} messages are held by an unknown consumer"
        for row in cursor.execute(_WITHOUT_CONSUMER, (queue,)).fetchall()
    ]
    faults += key_order_faults(
        dict(cursor.execute(_HEADS, (queue,))), [row[0] for row in cursor.execute(_KEYS_WITH_LINE, (queue,))]
    )
    lost = cursor.execute(_NO_PLACE, (queue,)).fetchone()[0]
    if lost:
        faults.append(f"{lost} messages are in no place")
    for what, count in counted.items():
        if count != getattr(totals, what):
            faults.append(f"{count} {what}, and the queue counts {getattr(totals, what)}")
    places = ("ready", "quarantined", "delayed", "held", "behind", "dead")
    return lost + sum(counted[place] for place in places), faults
