"""Read-write locks: many readers or one writer, each with a lease, in order of arrival.

Programs use each mode like a lock. A reader cannot become the writer: two readers that tried would deadlock. So if a
thread or task in a block of one mode requests the other mode, the lock refuses at once, through any lock object of the
client. A reader may enter another read block under the lease that it has: in the waiting line it might wait for a
writer that waits for this reader.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from holdfast.commands import READ, RWLOCK, WRITE, Granted
from holdfast.core.lease.lock import LeavingBlock, LockBase
from holdfast.core.pool.options import BorrowOptions, PoolOptions
from holdfast.core.pool.pool import ItemBase, PoolCommands
from holdfast.engines import Capability
from holdfast.errors import InvalidConfig
from holdfast.rules.rwlock import WRITER

if TYPE_CHECKING:
    from holdfast.core.client import Client
    from holdfast.core.lease.lease import LeaseBase

_RULES = {
    READ: "the writer would wait for itself; it may read under its own lease",
    WRITE: "a reader cannot become the writer; leave the read block first",
}

# Both modes are shares below the whole pool, so that each has its own order in the waiting line.
_SHARE_PPM = 1


class RWLockModeBase(PoolCommands, LockBase):
    """One mode of a read-write lock: a lock's settings, and whether it reads or writes."""

    # The lock objects of one client call this method of each other.
    _internal = frozenset(("leases_of",))

    def __init__(self, client: Client, name: str, *, mode: str, **settings: Any) -> None:
        client.refuse_without(Capability.POOLS, "read-write locks")
        self.mode = mode
        self._options = PoolOptions(RWLOCK)
        super().__init__(client, name, **settings)
        with client.guard:
            self._peers: weakref.WeakSet[RWLockModeBase] = client.rwlock_modes.setdefault(name, weakref.WeakSet())
            self._peers.add(self)

    def __repr__(self) -> str:
        return f"<{self.mode} mode of {self.name!r} on {self._client.url}>"

    def _fields(self) -> tuple[Any, ...]:
        return (BorrowOptions(self._options, self.mode, _SHARE_PPM), *super()._fields())

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "mode": self.mode}

    async def _is_locked(self) -> bool:
        now = await self._snapshot(1)  # the writer is alone
        return now.waiting > 0 or any(self.mode == WRITE or item.item == WRITER for item in now.items)

    def leases_of(self, caller: object) -> list[LeaseBase]:
        """Return the leases of the blocks that this thread or task (`caller`) has entered through this object."""
        return self._entered.get(caller, [])

    def _all(self) -> tuple[RWLockModeBase, ...]:
        """Return every lock object of the client for this lock, of both modes, including this one."""
        with self._client.guard:
            return tuple(self._peers)

    def _refuse_other_mode(self, caller: object) -> None:
        if any(peer.mode != self.mode and peer.leases_of(caller) for peer in self._all()):
            raise InvalidConfig("rwlock", self.name, _RULES[self.mode])

    def _reentrant_lease(self, caller: object) -> LeaseBase | None:
        if self.mode == WRITE:
            return super()._reentrant_lease(caller)
        leases = (peer.leases_of(caller)[-1] for peer in self._all() if peer.mode == READ and peer.leases_of(caller))
        lease = next(leases, None)
        if lease is not None:
            lease.check()
        return lease

    def _block_to_leave(self, caller: object) -> LeavingBlock:
        block = super()._block_to_leave(caller)
        others = (peer.leases_of(block.caller) for peer in self._all() if peer is not self)
        shared = any(block.lease in entered for entered in others)
        return block._replace(lease=None) if shared else block


class RWLockBase(PoolCommands):
    """The two modes of a read-write lock."""

    def __init__(self, client: Client, reading: RWLockModeBase) -> None:
        self._client = client
        self._options = PoolOptions(RWLOCK)
        self.name = reading.name

    def __repr__(self) -> str:
        return f"<rwlock {self.name!r} on {self._client.url}>"


class RWLeaseBase(ItemBase):
    """The lease of a reader or of the writer. A writer's fence exceeds all earlier ones; do not guard by a reader's."""

    @property
    def mode(self) -> str:
        """`read` or `write`."""
        return self._borrow.tag

    def __repr__(self) -> str:
        return f"<{self.mode} lease of {self.name!r} fence={self._fence} {self.state}>"

    def _item_granted(self, answer: Granted) -> None:
        self._item = answer.item
