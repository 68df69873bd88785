"""The registry: one owner per key, and every process can look it up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.aio.lease import Lease
from holdfast.clock import Seconds
from holdfast.core.registry.mailbox import RegistryLeaseBase
from holdfast.core.registry.registry import HAND_OFF_S, RegistryBase, RegistryChange, RegistryEntry
from holdfast.errors import NotAcquired

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.names import Holder


class RegistryLease(RegistryLeaseBase, Lease):
    """The lease of the owner of a key, or of a member. Leaving its block releases it."""

    async def receive(self, timeout: Seconds | None = None) -> str | None:
        """Return the next message to the owner of the key, or `None` if none comes in time.

        `timeout`: seconds to wait; `None` waits for ever, `0` looks once.
        """
        return await self._receive(timeout)

    async def hand_off(self, to: str, within: Seconds = HAND_OFF_S) -> None:
        """Release the key and reserve it for another server: no other claimer gets it for `within` seconds.

        `to`: the label of that server; `within`: seconds that the key stays reserved.
        """
        await self._hand_off(to, within)


# Inside the class below, `list` is a method.
Entries: TypeAlias = "list[RegistryEntry]"
Names: TypeAlias = "list[str]"


class Registry(RegistryBase):
    """A service registry: who owns which key. Tasks may share it."""

    async def claim(
        self, key: str, info: dict[str, Any] | None = None, *, group: str | None = None, limit: int | None = None
    ) -> RegistryLease | RegistryEntry:
        """Claim the key and return its lease, or return the `RegistryEntry` of its owner, which is false. Never waits.

        `key`: any text. `info`: a note for people, part of the entry. `group`, `limit`: put the key into a group and
        raise `NotAcquired` if the group has `limit` keys already.
        """
        return await self._claim(RegistryLease(*self._claim_fields(key, info, group, limit)))

    async def _claim(self, lease: RegistryLease) -> RegistryLease | RegistryEntry:
        entry = await self._claim_steps(lease)
        lease.delivered = entry is None
        return lease if entry is None else entry

    async def owner(self, key: str) -> RegistryEntry | None:
        """Return the entry of `key`: who runs it. `None` without an owner."""
        return await self._owner(key)

    async def list(self, prefix: str = "", *, group: str | None = None, owner: Holder | None = None) -> Entries:
        """Return the entries in the order of keys. The cost depends only on the number of entries found.

        `prefix`: only keys that begin with it. `group`: only this group. `owner`: only this process.
        """
        return await self._entries(prefix, group, owner)

    async def take(
        self,
        key: str,
        info: dict[str, Any] | None = None,
        *,
        force: bool = False,
        reason: str = "taken over",
        group: str | None = None,
        limit: int | None = None,
    ) -> RegistryLease | RegistryEntry:
        """Like `claim`; with `force`, take the key from its owner, whose lease is lost, and raise the fence.

        `key`, `info`, `group`, `limit`: as in `claim`. `reason`: text for the previous owner.
        """
        entry = await self.claim(key, info, group=group, limit=limit)
        if not isinstance(entry, RegistryEntry) or not force:
            return entry
        if entry.fence:
            await self._break_claim(key, reason)
        fields = self._claim_fields(key, info, group, limit, label=entry.owner.label)
        return await self._claim(RegistryLease(*fields))

    async def join(self, key: str, member: str) -> RegistryLease:
        """List this process as a member of the key until the lease is released.

        `key`: the key; `member`: the name of the member. Raise `NotAcquired` if a member of that name has joined.
        """
        lease = RegistryLease(*self._member_fields(key, member))
        if isinstance(await self._claim(lease), RegistryEntry):
            raise NotAcquired(f"{self.name}/{key}", reason=f"{member} has joined already")
        return lease

    async def send(self, key: str, message: str) -> None:
        """Send a message to the owner of a key, in any process; raise `NotFound` if the key has no owner.

        `key`: the key; `message`: text.
        """
        await self._send(key, message)

    async def members(self, key: str) -> Names:
        """Return the names of the members that joined `key`, in order."""
        return await self._members(key)

    async def idle(self) -> Entries:
        """Return the entries of this process that no member has joined."""
        return await self._idle()

    async def release_all(self) -> Names:
        """Release every key that this client owns, and end its memberships: for a server that stops.

        Return the keys that were lost before they could be released.
        """
        return await self._release_all()

    async def watch(self, prefix: str = "", interval: Seconds = 1.0) -> AsyncIterator[RegistryChange]:
        """Yield every present entry as a change, and then every change, for ever.

        `prefix`: only keys that begin with it. `interval`: seconds between two checks; if a check fails, the next one
        still reports the latest state.
        """
        watch = self._watch(prefix, interval)
        while True:
            for change in await watch.changes():
                yield change
