"""Is every message of a stored queue in exactly one place and in its order, and are the figures right?

It looks at everything.
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
    UNION ALL SELECT id FROM queue_letter WHERE queue = ?1
) GROUP BY id HAVING count(*) > 1
"""  # noqa: S608 - of our own words
_COUNT = "SELECT count(*) FROM queue_message WHERE queue = ? AND place ="
_COUNTS = {
    "ready": f"{_COUNT} 'ready' AND lane <> '!'",
    "quarantined": f"{_COUNT} 'ready' AND lane = '!'",
    "delayed": f"{_COUNT} 'delayed'",
    "held": f"{_COUNT} 'held'",
    "behind": f"{_COUNT} 'behind'",
    "dead": "SELECT count(*) FROM queue_letter WHERE queue = ?",
    "waiting": "SELECT count(*) FROM queue_consumer WHERE queue = ? AND hungry IS NOT NULL",
    "consumers": "SELECT count(*) FROM queue_consumer WHERE queue = ?",
}
_WITH_NOBODY = """
SELECT count(*) FROM queue_message WHERE queue = ?1 AND place = 'held'
AND consumer NOT IN (SELECT token FROM queue_consumer WHERE queue = ?1) GROUP BY consumer
"""
_NOWHERE = "SELECT count(*) FROM queue_message WHERE queue = ? AND place NOT IN ('ready', 'delayed', 'held', 'behind')"
_FIRSTS = "SELECT key, count(*) FROM queue_message WHERE queue = ? AND key <> '' AND place <> 'behind' GROUP BY key"
_LINES = "SELECT DISTINCT key FROM queue_message WHERE queue = ? AND place = 'behind'"


def audit(link: sqlite3.Cursor, queue: int, told: QueueTotals) -> tuple[int, list[str]]:
    """How many messages there are, dead ones too, and what is wrong, in sentences."""
    counted = {what: link.execute(ask, (queue,)).fetchone()[0] for what, ask in _COUNTS.items()}
    faults = [f"message {one} is in {count} places" for one, count in link.execute(_TWICE, (queue,)).fetchall()]
    faults += [f"{row[0]} messages are held by an unknown consumer" for row in link.execute(_WITH_NOBODY, (queue,)).fetchall()]
    faults += key_order_faults(dict(link.execute(_FIRSTS, (queue,))), [row[0] for row in link.execute(_LINES, (queue,))])
    lost = link.execute(_NOWHERE, (queue,)).fetchone()[0]
    if lost:
        faults.append(f"{lost} messages are in no place")
    for what, count in counted.items():
        if count != getattr(told, what):
            faults.append(f"{count} {what}, and the queue counts {getattr(told, what)}")
    places = ("ready", "quarantined", "delayed", "held", "behind", "dead")
    return lost + sum(counted[place] for place in places), faults
