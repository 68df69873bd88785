"""Directories: one owner per key, and everyone can look it up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.blocking.lease import Lease
from holdfast.clock import Seconds
from holdfast.core.registry import mailbox as letters
from holdfast.core.registry import registry as directory
from holdfast.core.registry.mailbox import Box
from holdfast.core.registry.registry import HAND_OFF_S, RegistryBase, RegistryChange, RegistryEntry
from holdfast.core.step import run
from holdfast.errors import NotAcquired

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.names import Holder


class RegistryLease(Box, Lease):
    """The lease of whoever owns a key, or has joined one. As a block, it is given back at the end of it."""

    key: str

    def receive(self, timeout: Seconds | None = None) -> str | None:
        """The next message to the owner of the key, or `None` if none comes in time."""
        return run(letters.receive(self, timeout))

    def hand_off(self, to: str, within: Seconds = HAND_OFF_S) -> None:
        """Give the key back, kept for whoever has that label: for so long nobody else can claim it."""
        run(directory.hand_off(self, to, within))

    def _take(self, place: RegistryBase) -> RegistryEntry | None:
        self._open()
        held = run(directory.claim(place, self, self.key))
        self._owned = held is None
        return held


# Inside the class below, `list` is a method.
Holdings: TypeAlias = "list[RegistryEntry]"
Names: TypeAlias = "list[str]"


class Registry(RegistryBase):
    """Who owns which key. Threads may share it."""

    def claim(
        self, key: str, info: dict[str, Any] | None = None, *, group: str | None = None, limit: int | None = None
    ) -> RegistryLease | RegistryEntry:
        """Own the key from now on, or learn who does: `RegistryEntry` is false. Never waits.

        With a group and a limit: `NotAcquired` if so many keys of the group are owned already.
        """
        return self._claim(key, info, None, group, limit)

    def _claim(
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
        held = lease._take(self)
        return lease if held is None else held

    def owner(self, key: str) -> RegistryEntry | None:
        """Who owns the key, or `None`."""
        return run(directory.owner(self, key))

    def list(self, prefix: str = "", *, group: str | None = None, owner: Holder | None = None) -> Holdings:
        """What is owned, in the order of keys. Costs what it finds, however much else there is."""
        return run(directory.owned(self, prefix, group, owner))

    def take(
        self,
        key: str,
        info: dict[str, Any] | None = None,
        *,
        force: bool = False,
        reason: str = "taken over",
        group: str | None = None,
        limit: int | None = None,
    ) -> RegistryLease | RegistryEntry:
        """As `claim`; with `force`, whoever owns it loses it, is told why, and the fence grows."""
        held = self.claim(key, info, group=group, limit=limit)
        if not isinstance(held, RegistryEntry) or not force:
            return held
        if held.fence:
            run(directory.expel(self, key, reason))
        return self._claim(key, info, held.owner.label, group, limit)

    def join(self, key: str, member: str) -> RegistryLease:
        """Be known as connected to the key until it is released. `NotAcquired` if that member is known already."""
        fields, indexes = self._member_fields(key, member)
        lease: RegistryLease = directory.prepared(RegistryLease(*fields), indexes)
        lease.key = key
        if lease._take(self) is not None:
            raise NotAcquired(f"{self.name}/{key}", reason=f"{member} has joined already")
        return lease

    def send(self, key: str, message: str) -> None:
        """Send a message to the owner of the key, who may be anywhere; `NotFound` if nobody owns it."""
        run(letters.send(self, key, message))

    def members(self, key: str) -> Names:
        """Who has joined the key, in order."""
        return run(directory.members(self, key))

    def idle(self) -> Holdings:
        """What this process owns and nobody has joined."""
        return run(directory.idle(self))

    def release_all(self) -> Names:
        """Give back every key that this client owns here, and end what it has joined: for a server that stops.

        Gives the keys that were lost before they could be given back.
        """
        return run(directory.release_all(self))

    def watch(self, prefix: str = "", interval: Seconds = 1.0) -> Iterator[RegistryChange]:
        """What there is, and then every change, for ever. Looks every `interval`; a missed look loses no outcome."""
        watch = directory.RegistryWatch(self, prefix, interval)
        while True:
            yield from run(watch.changes())
