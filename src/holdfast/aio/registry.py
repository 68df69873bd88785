"""Directories: one owner per key, and everyone can look it up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.aio.lease import Lease
from holdfast.clock import Seconds
from holdfast.core.registry import mailbox as letters
from holdfast.core.registry import registry as directory
from holdfast.core.registry.mailbox import Box
from holdfast.core.registry.registry import HAND_OFF_S, RegistryBase, RegistryChange, RegistryEntry
from holdfast.errors import NotAcquired

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.names import Holder


class RegistryLease(Box, Lease):
    """Like `blocking.RegistryLease`, awaited."""

    key: str

    async def receive(self, timeout: Seconds | None = None) -> str | None:
        """Like `blocking.RegistryLease.receive`, awaited."""
        return await letters.receive(self, timeout)

    async def hand_off(self, to: str, within: Seconds = HAND_OFF_S) -> None:
        """Like `blocking.RegistryLease.hand_off`, awaited."""
        await directory.hand_off(self, to, within)

    async def _take(self, place: RegistryBase) -> RegistryEntry | None:
        self._open()
        held = await directory.claim(place, self, self.key)
        self._owned = held is None
        return held


# Inside the class below, `list` is a method.
Holdings: TypeAlias = "list[RegistryEntry]"
Names: TypeAlias = "list[str]"


class Registry(RegistryBase):
    """Like `blocking.Registry`, awaited."""

    async def claim(
        self, key: str, info: dict[str, Any] | None = None, *, group: str | None = None, limit: int | None = None
    ) -> RegistryLease | RegistryEntry:
        """Like `blocking.Registry.claim`, awaited."""
        return await self._claim(key, info, None, group, limit)

    async def _claim(
        self,
        key: str,
        info: dict[str, Any] | None,
        label: str | None,
        group: str | None = None,
        limit: int | None = None,
    ) -> RegistryLease | RegistryEntry:
        fields, indexes = self._claim_fields(key, info, group)
        lease: RegistryLease = directory.prepared(RegistryLease(*fields), indexes, group, limit, label)
        lease.key = key
        held = await lease._take(self)
        return lease if held is None else held

    async def owner(self, key: str) -> RegistryEntry | None:
        """Like `blocking.Registry.owner`, awaited."""
        return await directory.owner(self, key)

    async def list(self, prefix: str = "", *, group: str | None = None, owner: Holder | None = None) -> Holdings:
        """Like `blocking.Registry.list`, awaited."""
        return await directory.owned(self, prefix, group, owner)

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
        """Like `blocking.Registry.take`, awaited."""
        held = await self.claim(key, info, group=group, limit=limit)
        if not isinstance(held, RegistryEntry) or not force:
            return held
        if held.fence:
            await directory.expel(self, key, reason)
        return await self._claim(key, info, held.owner.label, group, limit)

    async def join(self, key: str, member: str) -> RegistryLease:
        """Like `blocking.Registry.join`, awaited."""
        fields, indexes = self._member_fields(key, member)
        lease: RegistryLease = directory.prepared(RegistryLease(*fields), indexes)
        lease.key = key
        if await lease._take(self) is not None:
            raise NotAcquired(f"{self.name}/{key}", reason=f"{member} has joined already")
        return lease

    async def send(self, key: str, message: str) -> None:
        """Like `blocking.Registry.send`, awaited."""
        await letters.send(self, key, message)

    async def members(self, key: str) -> Names:
        """Like `blocking.Registry.members`, awaited."""
        return await directory.members(self, key)

    async def idle(self) -> Holdings:
        """Like `blocking.Registry.idle`, awaited."""
        return await directory.idle(self)

    async def release_all(self) -> Names:
        """Like `blocking.Registry.release_all`, awaited."""
        return await directory.release_all(self)

    async def watch(self, prefix: str = "", interval: Seconds = 1.0) -> AsyncIterator[RegistryChange]:
        """Like `blocking.Registry.watch`, awaited."""
        watch = directory.RegistryWatch(self, prefix, interval)
        while True:
            for change in await watch.changes():
                yield change
