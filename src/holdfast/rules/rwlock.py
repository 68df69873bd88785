"""The law of read-write locks: many readers or one writer, in the order in which they came.

It is the law of pools with items that come and go with their holders. A reader may enter while no writer is inside, a
writer while nobody is; and nobody enters past somebody who waits, so that no writer starves.
"""

from __future__ import annotations

from holdfast.commands import READ
from holdfast.rules.pool_state import FREE, ItemRecord, PoolState

WRITER = "writer"


def entry(state: PoolState, token: str, tag: str) -> ItemRecord | None:
    """The place that this token would have inside; `None` if it must wait."""
    if tag == READ:
        return None if state.find(WRITER) else ItemRecord(f"reader {token}", FREE, 0, leaving=True)
    taken, cooling, _ = state.counts()
    return None if taken or cooling else ItemRecord(WRITER, FREE, 0, leaving=True)
