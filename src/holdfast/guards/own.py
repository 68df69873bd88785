"""A guard for a resource of your own: the law and what it remembers, without any input or output.

It has no lock. Whatever makes the write of the resource one step (a lock, a transaction, the one task of an actor) has
to contain `admit` too; otherwise a newer holder may come in between.
"""

from __future__ import annotations

from holdfast.names import checked_name
from holdfast.rules.guard import UNSEEN, Bearer, Stamp, admitted, stamp_of


class Guard:
    """What one resource knows of its holders. `newest` is what to store with the resource, and to give back later."""

    def __init__(self, name: str, newest: Stamp = UNSEEN) -> None:
        self.name = checked_name(name)
        self.newest = newest if newest == UNSEEN else stamp_of(newest)

    def admit(self, lease: Bearer) -> None:
        """Remember this holder; raise `Fenced` if a newer one was here before. Then write, in the same step."""
        self.newest = admitted(self.name, self.newest, stamp_of(lease))

    def __repr__(self) -> str:
        return f"<guard of {self.name!r}, newest fence {self.newest.fence}>"
