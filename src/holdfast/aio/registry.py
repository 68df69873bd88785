"""Directories: one owner per key, and everyone can look it up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.aio.lease import Lease
from holdfast.clock import Seconds
from holdfast.core.registry import mailbox as letters
from holdfast.core.registry import registry as directory
from holdfast.core.registry.mailbox import Box
from holdfast.core.registry.registry import HAND_OFF_S, Change, DirectoryBase, Held
from holdfast.errors import NotAcquired

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.names import Owner


class Claimed(Box, Lease):
    """Like `blocking.Claimed`, awaited."""

    key: str

    async def receive(self, timeout: Seconds | None = None) -> str | None:
        """Like `blocking.Claimed.receive`, awaited."""
        return await letters.receive(self, timeout)

    async def hand_off(self, to: str, within: Seconds = HAND_OFF_S) -> None:
        """Like `blocking.Claimed.hand_off`, awaited."""
        await directory.hand_off(self, to, within)

    async def _take(self, place: DirectoryBase) -> Held | None:
        self._open()
        held = await directory.claim(place, self, self.key)
        self._owned = held is None
        return held


# Inside the class below, `list` is a method.
Holdings: TypeAlias = "list[Held]"
Names: TypeAlias = "list[str]"


class Directory(DirectoryBase):
    """Like `blocking.Directory`, awaited."""

    async def claim(
        self, key: str, info: dict[str, Any] | None = None, *, group: str | None = None, limit: int | None = None
    ) -> Claimed | Held:
        """Like `blocking.Directory.claim`, awaited."""
        return await self._claim(key, info, None, group, limit)

    async def _claim(
        self,
        key: str,
        info: dict[str, Any] | None,
        label: str | None,
        group: str | None = None,
        limit: int | None = None,
    ) -> Claimed | Held:
        fields, shelves = self._claim_fields(key, info, group)
        lease: Claimed = directory.prepared(Claimed(*fields), shelves, group, limit, label)
        lease.key = key
        held = await lease._take(self)
        return lease if held is None else held

    async def owner(self, key: str) -> Held | None:
        """Like `blocking.Directory.owner`, awaited."""
        return await directory.owner(self, key)

    async def list(self, prefix: str = "", *, group: str | None = None, owner: Owner | None = None) -> Holdings:
        """Like `blocking.Directory.list`, awaited."""
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
    ) -> Claimed | Held:
        """Like `blocking.Directory.take`, awaited."""
        held = await self.claim(key, info, group=group, limit=limit)
        if not isinstance(held, Held) or not force:
            return held
        if held.fence:
            await directory.expel(self, key, reason)
        return await self._claim(key, info, held.owner.label, group, limit)

    async def join(self, key: str, member: str) -> Claimed:
        """Like `blocking.Directory.join`, awaited."""
        fields, shelves = self._member_fields(key, member)
        lease: Claimed = directory.prepared(Claimed(*fields), shelves)
        lease.key = key
        if await lease._take(self) is not None:
            raise NotAcquired(f"{self.name}/{key}", reason=f"{member} has joined already")
        return lease

    async def send(self, key: str, message: str) -> None:
        """Like `blocking.Directory.send`, awaited."""
        await letters.send(self, key, message)

    async def members(self, key: str) -> Names:
        """Like `blocking.Directory.members`, awaited."""
        return await directory.members(self, key)

    async def idle(self) -> Holdings:
        """Like `blocking.Directory.idle`, awaited."""
        return await directory.idle(self)

    async def release_all(self) -> Names:
        """Like `blocking.Directory.release_all`, awaited."""
        return await directory.release_all(self)

    async def watch(self, prefix: str = "", interval: Seconds = 1.0) -> AsyncIterator[Change]:
        """Like `blocking.Directory.watch`, awaited."""
        watch = directory.Watch(self, prefix, interval)
        while True:
            for change in await watch.changes():
                yield change
