"""The law of read-write locks: many readers or one writer, in the order in which they came.

It is the law of pools with items that come and go with their holders. A reader may enter while no writer is inside, a
writer while nobody is; and nobody enters past somebody who waits, so that no writer starves.
"""

from __future__ import annotations

from holdfast.commands import READ
from holdfast.rules.pool_state import FREE, Item, PoolState

WRITER = "writer"


def entry(stock: PoolState, token: str, tag: str) -> Item | None:
    """The place that this token would have inside; `None` if it must wait."""
    if tag == READ:
        return None if stock.find(WRITER) else Item(f"reader {token}", FREE, 0, leaving=True)
    taken, cooling, _ = stock.counts()
    return None if taken or cooling else Item(WRITER, FREE, 0, leaving=True)
