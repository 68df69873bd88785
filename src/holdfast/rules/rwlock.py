"""The rules of read-write locks: many readers or one writer, in order of arrival.

A read-write lock is a pool whose items exist only while they are held. A reader gets the lock while no writer holds it,
a writer while the lock has no holder at all. No newcomer overtakes a waiter, so writers do not starve.
"""

from __future__ import annotations

from holdfast.commands import READ
from holdfast.rules.pool_state import FREE, ItemRecord, PoolState

WRITER = "writer"


def item_for(state: PoolState, token: str, tag: str) -> ItemRecord | None:
    """Return the item that this token would hold, or `None` if it must wait."""
    if tag == READ:
        return None if state.find(WRITER) else ItemRecord(f"reader {token}", FREE, 0, leaving=True)
    taken, cooling, _ = state.counts()
    return None if taken or cooling else ItemRecord(WRITER, FREE, 0, leaving=True)
