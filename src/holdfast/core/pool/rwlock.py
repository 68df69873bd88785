"""Read-write locks: many readers or one writer, each with a lease, in the order in which they came.

Each side is entered like a lock. A reader cannot become the writer while it reads: two that tried would wait for each
other for ever. So whoever is in a block of one side and asks for the other is refused at once, through whichever object
of the client it asks. Whoever reads may enter another block of the readers: under the lease that it has, because in the
queue it would wait for a writer that waits for it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from holdfast.commands import READ, RWLOCK, WRITE, Granted
from holdfast.core.lease.lock import LeavingBlock, LockBase
from holdfast.core.pool.pool import ItemBase, Terms
from holdfast.engines import Capability
from holdfast.errors import InvalidConfig

if TYPE_CHECKING:
    from holdfast.core.client import Client
    from holdfast.core.lease.lease import LeaseBase

_RULES = {
    READ: "the writer would wait for itself: it is alone, and may read under its own lease",
    WRITE: "whoever reads cannot become the writer: leave the block of the reader first",
}

# Both are parts of the whole, so that each has a line of its own in the queue.
_PART_PPM = 1


class SideBase(LockBase):
    """One side of a read-write lock: a lock's settings, and which side it is."""

    # What an access asks of its pool.
    kind = RWLOCK
    _permits = 0
    _expiry_cooldown_ms = 0
    _cooldown_ms = 0
    _cool_on: tuple[type[BaseException], ...] = ()

    def __init__(self, client: Client, name: str, *, side: str, **settings: Any) -> None:
        client.refuse_without(Capability.POOLS)
        self._side = side
        super().__init__(client, name, **settings)
        with client.guard:
            self._peers: weakref.WeakSet[SideBase] = client.sides.setdefault(name, weakref.WeakSet())
            self._peers.add(self)

    def __repr__(self) -> str:
        return f"<{self._side} side of {self.name!r} on {self._client.url}>"

    def _fields(self) -> tuple[Any, ...]:
        return (Terms(self, self._side, _PART_PPM), *super()._fields())

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "side": self._side}

    def _all(self) -> tuple[SideBase, ...]:
        """Every object of the client that is a side of this lock, and this one."""
        with self._client.guard:
            return tuple(self._peers)

    def _refuse_other_side(self, who: object) -> None:
        if any(peer._side != self._side and peer._depth(who) for peer in self._all()):
            raise InvalidConfig("rwlock", self.name, _RULES[self._side])

    def _inside(self, who: object) -> LeaseBase | None:
        if self._side == WRITE:
            return super()._inside(who)
        leases = (peer._entered[who][-1] for peer in self._all() if peer._side == READ and peer._depth(who))
        lease = next(leases, None)
        if lease is not None:
            lease.check()
        return lease

    def _leaving(self, who: object) -> LeavingBlock:
        block = super()._leaving(who)
        others = (peer._entered.get(block.who, ()) for peer in self._all() if peer is not self)
        shared = any(block.lease in entered for entered in others)
        return block._replace(lease=None) if shared else block


class AccessBase(ItemBase):
    """The lease of a reader or of the writer. A writer's fence exceeds all before it; a reader's guards nothing."""

    @property
    def side(self) -> str:
        """`read` or `write`."""
        return self._terms.tag

    def __repr__(self) -> str:
        return f"<{self.side} access to {self.name!r} fence={self._fence} {self.state}>"

    def _told(self, answer: Granted) -> None:
        self._item = answer.item
