"""Directories: one owner per key, and everyone can look it up.

A claim is a lease that never waits: whoever is not first learns who is. It stands on shelves in the directory's own
slot, so that listing costs what it finds. Members join a key for as long as they are connected; they own nothing.
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
    ClaimEntry,
    EntryPage,
    Granted,
    HandedOff,
    LeaseParty,
    ListEntries,
    ReleaseEntry,
)
from holdfast.core.inspection import break_fence, lease_info
from holdfast.core.lease.state import HELD
from holdfast.core.resend import send_safely
from holdfast.engines import Capability
from holdfast.errors import PASSING, InvalidConfig, InvalidName, LeaseLost, NotAcquired, NotFound, Unavailable
from holdfast.names import LABEL_MAX, Holder, checked_name, is_unicode, this_process
from holdfast.observer import DEBUG, debugging

if TYPE_CHECKING:
    from holdfast.core.client import Client
    from holdfast.core.lease.lease import LeaseBase

TTL_S = 15.0
# Only the shelf of all keys is kept in order: another one is read as a whole for each page of it.
_PAGE, _PAGE_OF_OTHERS = 500, 2000
_KEYS, _MEMBERS = "k", "m"
_WHERE = "where"
HAND_OFF_S = 10.0


class RegistryEntry(NamedTuple):
    """Somebody owns the key: who, under which fence, for how long already, for how much longer unless renewed.

    False, so that `if lease := directory.claim(key):` reads as it should.
    """

    key: str
    owner: Holder
    fence: int
    seconds: float
    remaining: float
    group: str = ""

    @property
    def info(self) -> dict[str, Any]:
        """What the owner said of its claim."""
        info: dict[str, Any] = self.owner.info.get("claim", {})
        return info

    @property
    def kept(self) -> bool:
        """Nobody owns it: it is kept for the server with the label of the owner, for so much longer."""
        return not self.fence

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> NoReturn:
        """A block is entered by whoever owns the key, and by nobody else."""
        why = "kept for another" if self.kept else "busy"
        facts = {"holder": str(self.owner), "fence": self.fence, "remaining": self.remaining}
        raise NotAcquired(self.key, reason=why, **facts)  # type: ignore[arg-type]

    def __exit__(self, *failure: object) -> None:
        """Never reached."""

    async def __aenter__(self) -> NoReturn:
        self.__enter__()

    async def __aexit__(self, *failure: object) -> None:
        """Never reached."""


class RegistryChange(NamedTuple):
    """What happened to a key: claimed, moved (to another owner), released, lost. `now` is `None` if nobody has it."""

    kind: str
    key: str
    now: RegistryEntry | None
    before: RegistryEntry | None


class RegistryBase:
    """Settings, checked before any input or output."""

    def __init__(self, client: Client, name: str, *, ttl: Seconds) -> None:
        client.refuse_without(Capability.REGISTRY)
        self._client = client
        self.name = checked_name(name)
        self._ttl_ms = ttl_ms(ttl)

    def __repr__(self) -> str:
        return f"<directory {self.name!r} on {self._client.url}>"

    def _claim_fields(
        self, key: str, info: dict[str, Any] | None, group: str | None
    ) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """What a new claim is made of, and its shelves."""
        entry = _KEYS + checked_key("key", key)
        if group is not None:
            checked_key("group", group)
        told = this_process(self._client.holder.label, info).info  # checks it, before our own words come in
        facts = {"claim": told, "group": group or "", _WHERE: _where()}
        owner = this_process(self._client.holder.label)._replace(info={**self._client.holder.info, **facts})
        indexes = (_KEYS, f"o:{_identity(owner)}", *(() if group is None else (f"g:{group}",)))
        return self._fields(entry, owner), indexes

    def _member_fields(self, key: str, member: str) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        entry = f"{_MEMBERS}{checked_key('key', key)}\0{checked_key('member', member)}"
        return self._fields(entry, self._client.holder), (f"m:{key}",)

    def _fields(self, entry: str, owner: Holder) -> tuple[Any, ...]:
        return (self._client, self._name_of(entry), self._ttl_ms, owner, owner.packed(), None, False)

    def _name_of_key(self, key: str) -> str:
        return self._name_of(_KEYS + checked_key("key", key))

    def _name_of(self, entry: str) -> str:
        return f"{self.name}\0{entry}"


def checked_key(what: str, value: object) -> str:
    """A key, member or group: text, of any signs but NUL."""
    if isinstance(value, str) and value:
        return checked_name(value, f"a {what}")
    raise InvalidName(value, f"a {what} must be text, and not empty")


def prepared(
    lease: Any, indexes: tuple[str, ...], group: str | None = None, limit: int | None = None, label: str | None = None
) -> Any:
    """A new claim that stands on these shelves."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0 or group is None):
        raise InvalidConfig("limit", limit, "it must be a whole number, 0 or more, and needs a group")
    most, index_name = (-1, "") if limit is None else (limit, f"g:{group}")
    whose = lease.client.holder.label if label is None else label
    lease.begin_with = lambda ask: ClaimEntry(ask, indexes, index_name, most, whose)
    lease.end_with = lambda end: ReleaseEntry(end, indexes, *lease._successor)
    return lease


async def claim(directory: RegistryBase, lease: LeaseBase, key: str) -> RegistryEntry | None:
    """Take it, or say who has it; `None` if it is the caller's now. One decision, never a wait."""
    client = directory._client
    began_ns = client.clock.now_ns()
    client.begin(lease)
    try:
        answer = await lease.decide_steps(began_ns)
        if isinstance(answer, Busy) and _is_dead(Holder.unpacked(answer.holder)):
            await break_fence(client, lease.name, answer.fence, "its process is dead")
            answer = await lease.decide_steps(began_ns)
        if isinstance(answer, Busy):
            _given_up(lease, began_ns, f"held by {Holder.unpacked(answer.holder)}")
            # Who it is stands in the answer, but not since when.
            now = await lease_info(client, lease.name)
            return held_by(key, now.holder or LeaseParty(answer.holder, "", answer.fence, 0, answer.remaining_ms))
        if isinstance(answer, HandedOff):
            _given_up(lease, began_ns, f"kept for {answer.successor}")
            successor = Holder("", 0, 0, answer.successor)
            return RegistryEntry(key, successor, 0, 0.0, answer.remaining_ms / 1000)
        if isinstance(answer, AtCapacity):
            reason = f"its group has {answer.size} already"
            _given_up(lease, began_ns, reason)
            raise NotAcquired(f"{directory.name}/{key}", reason=reason)
        if not isinstance(answer, Granted):
            raise lease.not_acquired(answer, began_ns)
    except BaseException:
        lease.undo()
        raise
    client.keeper.due(lease.due_ns)
    if client.observer is not None or debugging(DEBUG):
        client.emit("granted", lease.name, lease.fence_or_none, (client.clock.now_ns() - began_ns) / NS)
    return None


def _given_up(lease: LeaseBase, began_ns: int, why: str) -> None:
    client = lease.client
    client.emit("refused", lease.name, seconds=(client.clock.now_ns() - began_ns) / NS, detail=why)
    lease.refused()


async def hand_off(lease: Any, to: str, within: Seconds) -> None:
    """Give the key back, kept for whoever has that label, for so long."""
    lease._successor = checked_heir(to, within)
    await lease.release_steps()


def checked_heir(to: str, within: Seconds) -> tuple[str, int]:
    """The label of a server, and how long something is kept for it, in milliseconds."""
    if not isinstance(to, str) or not 0 < len(to) <= LABEL_MAX or not is_unicode(to):
        raise InvalidConfig("to", to, f"it must be the label of a server: text of 1 to {LABEL_MAX} characters")
    return to, ttl_ms(within, setting="within")


async def owner(directory: RegistryBase, key: str) -> RegistryEntry | None:
    """Who owns the key, or `None`."""
    now = await lease_info(directory._client, directory._name_of_key(key))
    return None if now.holder is None else held_by(key, now.holder)


async def owned(
    directory: RegistryBase, prefix: str = "", group: str | None = None, owner: Holder | None = None
) -> list[RegistryEntry]:
    """What is owned, in the order of keys: all of it, of a group, or by one process."""
    index_name = _KEYS if group is None else f"g:{checked_key('group', group)}"
    if owner is not None and group is None:
        index_name = f"o:{_identity(owner)}"
    found = [held_by(entry[1:], seat) for entry, seat in await _listed(directory, index_name, _KEYS + prefix)]
    # A server sorts by its own locale, where it is not Redis that sorts but Lua.
    found.sort(key=lambda each: each.key)
    return [each for each in found if owner is None or _identity(each.owner) == _identity(owner)]


async def members(directory: RegistryBase, key: str) -> list[str]:
    """Who has joined the key, in order."""
    found = await _listed(directory, f"m:{checked_key('key', key)}", _MEMBERS)
    return [entry.partition("\0")[2] for entry, _ in found]


async def idle(directory: RegistryBase) -> list[RegistryEntry]:
    """What this process owns and nobody has joined: what does not run either may be closed."""
    mine = await owned(directory, owner=directory._client.holder)
    asked = [ListEntries(directory.name, f"m:{each.key}", _MEMBERS, "", _PAGE) for each in mine]
    answers = await directory._client.send_all(asked)
    # A page of nothing but the dead may have another behind it.
    joined = [
        bool(page.entries) or (page.last and await members(directory, each.key))
        for each, page in zip(mine, answers, strict=True)
    ]
    return [each for each, some in zip(mine, joined, strict=True) if not some]


async def _listed(directory: RegistryBase, index_name: str, prefix: str) -> list[tuple[str, LeaseParty]]:
    found: list[tuple[str, LeaseParty]] = []
    after, at_once = "", _PAGE if index_name == _KEYS else _PAGE_OF_OTHERS
    while True:
        page = await send_safely(directory._client, ListEntries(directory.name, index_name, prefix, after, at_once))
        assert isinstance(page, EntryPage)
        found += page.entries
        after = page.last
        if not after:
            return found


async def expel(directory: RegistryBase, key: str, reason: str, fence: int | None = None) -> RegistryEntry:
    """End the claim of whoever owns the key, or only that of the fence, by force; it is told why.

    `NotFound` if nobody does.
    """
    now = await owner(directory, key)
    if now is None:
        raise NotFound(f"{directory.name}/{key}", "owner")
    if fence is not None and now.fence != fence:
        raise NotFound(f"{directory.name}/{key}", f"owner with fence {fence} any more")
    await break_fence(directory._client, directory._name_of_key(key), now.fence, reason)
    return now


async def release_all(directory: RegistryBase) -> list[str]:
    """Give back whatever this client owns or has joined there; the keys that it had lost before."""
    lost = []
    for lease in directory._client.keeper.live_leases():
        if lease.state is HELD and lease.name.startswith(directory._name_of("")):
            try:
                await lease.release_steps()
            except LeaseLost:
                lost.append(lease.name.partition("\0")[2][1:].partition("\0")[0])
    return sorted(set(lost))


def held_by(key: str, seat: LeaseParty) -> RegistryEntry:
    who = Holder.unpacked(seat.holder)
    return RegistryEntry(
        key, who, seat.fence, seat.since_ms / 1000, seat.remaining_ms / 1000, str(who.info.get("group", ""))
    )


class RegistryWatch:
    """Tells what changed in a directory; the first look tells what there is. Looking is the authority."""

    def __init__(self, directory: RegistryBase, prefix: str, interval: Seconds) -> None:
        interval_ns = timeout_ns(interval, setting="interval")
        if not interval_ns:
            raise InvalidConfig("interval", interval, "it must be more than zero seconds")
        self._directory, self._prefix, self._interval_ns = directory, prefix, interval_ns
        self._seen: dict[str, RegistryEntry] | None = None
        self._at_ns = 0

    async def changes(self) -> list[RegistryChange]:
        """What is different since the last look; waits for the next look, and until there is something."""
        client = self._directory._client
        while True:
            if self._seen is not None:
                await client.transport.waker().wait(self._at_ns + self._interval_ns)
            try:
                now = {each.key: each for each in await owned(self._directory, self._prefix)}
            except Unavailable as error:
                if self._seen is None or error.reason not in PASSING:
                    raise
                client.emit("unavailable", self._directory.name, detail=str(error))
                self._at_ns = client.clock.now_ns()
                continue
            found = self._compared(now, (client.clock.now_ns() - self._at_ns) / NS)
            self._seen, self._at_ns = now, client.clock.now_ns()
            if found:
                return found

    def _compared(self, now: dict[str, RegistryEntry], passed_s: float) -> list[RegistryChange]:
        before = self._seen or {}
        found = [RegistryChange("claimed", key, each, None) for key, each in now.items() if key not in before]
        for key, each in before.items():
            if key not in now:
                # What could not have lapsed since was given back.
                kind = "released" if each.remaining > passed_s + NS_PER_MS / NS else "lost"
                found.append(RegistryChange(kind, key, None, each))
            elif now[key].fence != each.fence:
                found.append(RegistryChange("moved", key, now[key], each))
        return sorted(found, key=lambda change: change.key)


def _identity(who: Holder) -> str:
    return f"{who.host}:{who.pid}:{who.start}"


@cache
def _where() -> str:
    """Which kernel and which of its name spaces of processes: only there does a pid mean the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _is_dead(who: Holder) -> bool:
    """Proven: it ran here, and its pid is nobody's, or that of a process that began at another time."""
    if not _where() or who.info.get(_WHERE) != _where() or not who.start:
        return False
    try:
        fields = Path(f"/proc/{who.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) != who.start or fields[0] in "ZX"
    except FileNotFoundError:
        return True
    except (OSError, IndexError, ValueError):
        return False
