"""The registry: one owner per key, and every process can look it up.

A claim is a lease that never waits: a second claimer learns who the owner is. Each registry has indexes of its entries,
so that the cost of a list depends only on the number of entries found. Members join a key for as long as they are
connected; they do not own the key.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from holdfast.clock import NS, NS_PER_MS, Seconds, timeout_ns, ttl_ms
from holdfast.commands import (
    AtCapacity,
    Busy,
    EntryPage,
    Granted,
    HandedOff,
    LeaseParty,
    ListEntries,
    NotHeld,
    SendToOwner,
)
from holdfast.core.inspection import break_fence, lease_info
from holdfast.core.lease.state import HELD
from holdfast.core.registry.mailbox import ClaimOptions, RegistryLeaseBase
from holdfast.core.resend import send_safely
from holdfast.engines import Capability
from holdfast.errors import PASSING, InvalidConfig, InvalidName, LeaseLost, NotAcquired, NotFound, Unavailable
from holdfast.host import boot_id
from holdfast.interrupts import raise_if_of_signal
from holdfast.names import TEXT, Holder, checked_name, is_unicode, new_token, this_process
from holdfast.observer import DEBUG, debugging
from holdfast.text import size_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.core.client import Client

TTL_S = 15.0
HAND_OFF_S = 10.0
MESSAGE_MAX_BYTES = 65536
# Only the index of all keys is sorted; the engine reads any other index as a whole for each of its pages.
_PAGE, _PAGE_OF_OTHERS = 500, 2000
_KEYS, _MEMBERS = "k", "m"
_WHERE = "where"


class RegistryEntry(NamedTuple):
    """An entry with its owner. `seconds`: how long the owner has held it; `remaining`: how much longer unless renewed.

    An entry is false, so that `if lease := registry.claim(key):` is true only for a successful claim. `registry` is the
    name of the registry.
    """

    key: str
    owner: Holder
    fence: int
    seconds: float
    remaining: float
    group: str = ""
    registry: str = ""

    @property
    def info(self) -> dict[str, Any]:
        """The `info` that the owner gave to its claim."""
        info: dict[str, Any] = self.owner.info.get("claim", {})
        return info

    @property
    def reserved(self) -> bool:
        """True if the key has no owner, but is reserved for the server with the label in `owner`."""
        return not self.fence

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> NoReturn:
        """Raise `NotAcquired`: only the owner of the key may enter a block."""
        why = "handed off to another" if self.reserved else "busy"
        fields = {"holder": str(self.owner), "fence": self.fence, "remaining": self.remaining}
        raise NotAcquired(f"{self.registry}/{self.key}", reason=why, **fields)  # type: ignore[arg-type]

    def __exit__(self, *failure: object) -> None:
        """Never reached."""

    async def __aenter__(self) -> NoReturn:
        self.__enter__()

    async def __aexit__(self, *failure: object) -> None:
        """Never reached."""


class RegistryChange(NamedTuple):
    """A change of one key. `kind`: claimed, moved (to another owner), released or lost. `now`: `None` if unowned."""

    kind: str
    key: str
    now: RegistryEntry | None
    before: RegistryEntry | None


class RegistryBase:
    """A registry: its settings, checked before any I/O, and its commands."""

    def __init__(self, client: Client, name: str, *, ttl: Seconds) -> None:
        client.refuse_without(Capability.REGISTRY)
        self._client = client
        self.name = checked_name(name)
        self._ttl_ms = ttl_ms(ttl)

    def __repr__(self) -> str:
        return f"<registry {self.name!r} on {self._client.url}>"

    # Claims.

    def _claim_fields(
        self, key: str, info: dict[str, Any] | None, group: str | None, limit: int | None, label: str | None = None
    ) -> tuple[Any, ...]:
        """Return the arguments of a new claim's lease; `label`: claim as this successor."""
        entry = _KEYS + checked_key("key", key)
        if group is not None:
            checked_key("group", group)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0 or group is None):
            raise InvalidConfig("limit", limit, "it must be a whole number, 0 or more, and needs a group")
        holder = self._client.holder
        checked_info = this_process(holder.label, info).info  # checks the size without the fields of the library
        fields = {"claim": checked_info, "group": group or "", _WHERE: _where()}
        owner = this_process(holder.label)._replace(info={**holder.info, **fields})
        indexes = (_KEYS, f"o:{_identity(owner)}", *(() if group is None else (f"g:{group}",)))
        group_index, most = ("", -1) if limit is None else (f"g:{group}", limit)
        claim = ClaimOptions(key, indexes, group_index, most, holder.label if label is None else label)
        return (claim, *self._lease_fields(entry, owner))

    def _member_fields(self, key: str, member: str) -> tuple[Any, ...]:
        """Return the arguments of a new member's lease."""
        entry = f"{_MEMBERS}{checked_key('key', key)}\0{checked_key('member', member)}"
        claim = ClaimOptions(key, (f"m:{key}",), label=self._client.holder.label)
        return (claim, *self._lease_fields(entry, self._client.holder))

    def _lease_fields(self, entry: str, owner: Holder) -> tuple[Any, ...]:
        return (self._client, self._lease_name(entry), self._ttl_ms, owner, owner.packed(), None, False)

    def _lease_name_of_key(self, key: str) -> str:
        return self._lease_name(_KEYS + checked_key("key", key))

    def _lease_name(self, entry: str) -> str:
        return f"{self.name}\0{entry}"

    async def _claim_steps(self, lease: RegistryLeaseBase) -> RegistryEntry | None:
        """Claim the key; return `None` after success, else the entry of its owner. Does not wait for the owner."""
        client = self._client
        began_ns = client.clock.now_ns()
        client.begin(lease)
        try:
            answer = await lease.request_once_steps(began_ns)
            if isinstance(answer, Busy) and _is_dead(Holder.unpacked(answer.holder)):
                await break_fence(client, lease.name, answer.fence, "its process is dead")
                answer = await lease.request_once_steps(began_ns)
            if isinstance(answer, Busy):
                _refuse(lease, began_ns, f"held by {Holder.unpacked(answer.holder)}")
                # The answer names the owner, but not since when it holds the key.
                now = await lease_info(client, lease.name)
                owner = now.holder or LeaseParty(answer.holder, "", answer.fence, 0, answer.remaining_ms)
                return entry_of(self.name, lease.key, owner)
            if isinstance(answer, HandedOff):
                _refuse(lease, began_ns, f"handed off to {answer.successor}")
                successor = Holder("", 0, 0, answer.successor)
                left_s = answer.remaining_ms / 1000
                return RegistryEntry(lease.key, successor, 0, 0.0, left_s, registry=self.name)
            if isinstance(answer, AtCapacity):
                reason = f"its group already has {answer.size} entries"
                _refuse(lease, began_ns, reason)
                raise NotAcquired(f"{self.name}/{lease.key}", reason=reason)
            if not isinstance(answer, Granted):
                raise lease.not_acquired(answer, began_ns)
        except BaseException:
            lease.undo()
            raise
        client.keeper.wake_by(lease.due_ns)
        if client.observer is not None or debugging(DEBUG):
            client.emit("granted", lease.name, lease.fence_or_none, (client.clock.now_ns() - began_ns) / NS)
        return None

    async def _break_claim(self, key: str, reason: str, fence: int | None = None) -> RegistryEntry:
        """End the owner's claim by force; with `fence`, only that claim. Raise `NotFound` if there is none."""
        now = await self._owner(key)
        if now is None:
            raise NotFound(f"{self.name}/{key}", "owner")
        if fence is not None and now.fence != fence:
            raise NotFound(f"{self.name}/{key}", f"owner with fence {fence} any more")
        await break_fence(self._client, self._lease_name_of_key(key), now.fence, reason)
        return now

    async def _release_all(self) -> list[str]:
        """Release every key that this client owns or has joined; return the keys that it had already lost."""
        lost = []
        for lease in self._client.keeper.live_leases():
            if lease.state is HELD and lease.name.startswith(self._lease_name("")):
                try:
                    await lease.release_steps()
                except LeaseLost:
                    lost.append(lease.name.partition("\0")[2][1:].partition("\0")[0])
        return sorted(set(lost))

    # Lookups.

    async def _owner(self, key: str) -> RegistryEntry | None:
        """Return the entry of the key, or `None` without an owner."""
        now = await lease_info(self._client, self._lease_name_of_key(key))
        return None if now.holder is None else entry_of(self.name, key, now.holder)

    async def _entries(
        self, prefix: str = "", group: str | None = None, owner: Holder | None = None
    ) -> list[RegistryEntry]:
        """Return the entries in the order of keys: all, those of a group, or those of one process."""
        if prefix != "":
            checked_name(prefix, "a prefix")
        index_name = _KEYS if group is None else f"g:{checked_key('group', group)}"
        if owner is not None and group is None:
            index_name = f"o:{_identity(owner)}"
        found = [entry_of(self.name, entry[1:], party) for entry, party in await self._list(index_name, _KEYS + prefix)]
        # The Lua scripts sort by the locale of the server, so sort again.
        found.sort(key=lambda each: each.key)
        return [each for each in found if owner is None or _identity(each.owner) == _identity(owner)]

    async def _members(self, key: str) -> list[str]:
        """Return the members of the key, in order."""
        found = await self._list(f"m:{checked_key('key', key)}", _MEMBERS)
        return [entry.partition("\0")[2] for entry, _ in found]

    async def _idle(self) -> list[RegistryEntry]:
        """Return the entries of this process that no member has joined."""
        owned = await self._entries(owner=self._client.holder)
        commands = [ListEntries(self.name, f"m:{each.key}", _MEMBERS, "", _PAGE) for each in owned]
        answers = await self._client.send_all(commands)
        # A page may have only expired members, and another page may follow it.
        joined = [
            page is None or bool(page.entries) or (page.last and await self._members(each.key))
            for each, page in zip(owned, answers, strict=True)
        ]
        return [each for each, has_members in zip(owned, joined, strict=True) if not has_members]

    async def _list(self, index_name: str, prefix: str) -> list[tuple[str, LeaseParty]]:
        """Return all entries of an index with the prefix, page by page."""
        found: list[tuple[str, LeaseParty]] = []
        after, limit = "", _PAGE if index_name == _KEYS else _PAGE_OF_OTHERS
        while True:
            page = await send_safely(self._client, ListEntries(self.name, index_name, prefix, after, limit))
            assert isinstance(page, EntryPage)
            found += page.entries
            after = page.last
            if not after:
                return found

    def _watch(self, prefix: str, interval: Seconds) -> RegistryWatch:
        return RegistryWatch(self._client, self.name, lambda: self._entries(prefix), interval)

    # Messages.

    async def _send(self, key: str, message: str) -> None:
        """Send a message to the owner's mailbox; raise `NotFound` without an owner: no process would read it."""
        if not isinstance(message, str) or not is_unicode(message) or len(message.encode()) > MESSAGE_MAX_BYTES:
            raise InvalidConfig("message", size_of(message), f"it must be text of at most {MESSAGE_MAX_BYTES} bytes")
        answer = await send_safely(self._client, SendToOwner(self._lease_name_of_key(key), new_token(), message))
        if isinstance(answer, AtCapacity):
            raise NotAcquired(f"{self.name}/{key}", reason=f"its owner has {answer.size} unread messages")
        if isinstance(answer, NotHeld):
            raise NotFound(f"{self.name}/{key}", "owner")


def checked_key(what: str, value: object) -> str:
    """Return the checked key, member or group: text of any characters but NUL."""
    if isinstance(value, str) and value:
        return checked_name(value, f"a {what}")
    raise InvalidName(value, f"a {what} must be text, and not empty: {TEXT}")


def entry_of(registry: str, key: str, party: LeaseParty) -> RegistryEntry:
    """Return the entry of a key of the registry that this party holds."""
    owner = Holder.unpacked(party.holder)
    group = str(owner.info.get("group", ""))
    return RegistryEntry(key, owner, party.fence, party.since_ms / 1000, party.remaining_ms / 1000, group, registry)


def _refuse(lease: RegistryLeaseBase, began_ns: int, why: str) -> None:
    client = lease.client
    client.emit("refused", lease.name, seconds=(client.clock.now_ns() - began_ns) / NS, detail=why)
    lease.refused()


class RegistryWatch:
    """Reports the changes of a registry; the first check reports every entry. Polling always finds the latest state."""

    def __init__(
        self, client: Client, name: str, entries: Callable[[], Awaitable[list[RegistryEntry]]], interval: Seconds
    ) -> None:
        interval_ns = timeout_ns(interval, setting="interval")
        if not interval_ns:
            raise InvalidConfig("interval", interval, "it must be more than zero seconds")
        self._client, self._name, self._entries, self._interval_ns = client, name, entries, interval_ns
        self._before: dict[str, RegistryEntry] | None = None
        self._at_ns = 0

    async def changes(self) -> list[RegistryChange]:
        """Poll until there are changes, and return them."""
        client = self._client
        while True:
            if self._before is not None:
                await client.transport.waker().wait(self._at_ns + self._interval_ns)
            try:
                now = {each.key: each for each in await self._entries()}
            except Unavailable as error:
                if self._before is None or error.reason not in PASSING:
                    raise
                client.emit("unavailable", self._name, detail=str(error))
                self._at_ns = client.clock.now_ns()
                continue
            found = self._compared(now, (client.clock.now_ns() - self._at_ns) / NS)
            self._before, self._at_ns = now, client.clock.now_ns()
            if found:
                return found

    def _compared(self, now: dict[str, RegistryEntry], passed_s: float) -> list[RegistryChange]:
        """Return the changes since the last check, in the order of keys."""
        before = self._before or {}
        found = [RegistryChange("claimed", key, each, None) for key, each in now.items() if key not in before]
        for key, each in before.items():
            if key not in now:
                # If the lease cannot have expired since the last check, its owner released it.
                kind = "released" if each.remaining > passed_s + NS_PER_MS / NS else "lost"
                found.append(RegistryChange(kind, key, None, each))
            elif now[key].fence != each.fence:
                found.append(RegistryChange("moved", key, now[key], each))
        return sorted(found, key=lambda change: change.key)


def _identity(holder: Holder) -> str:
    return f"{holder.host}:{holder.pid}:{holder.start}"


@cache
def _where() -> str:
    """Return the clock and the pid namespace of this process: a pid and its start can be compared only there."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError as error:
        raise_if_of_signal(error)
        return ""


def _is_dead(holder: Holder) -> bool:
    """Return true if the holder ran on this kernel and its process provably ended: no such pid, or a reused one."""
    if not _where() or holder.info.get(_WHERE) != _where() or not holder.start:
        return False
    try:
        fields = Path(f"/proc/{holder.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) != holder.start or fields[0] in "ZX"
    except FileNotFoundError:
        return True
    except (OSError, IndexError, ValueError) as error:
        raise_if_of_signal(error)
        return False
