"""Waiters and tombs that stay in their tables: the law asks, and only what it asks for is looked up.

What the law changes is kept beside what is stored, and written by `write` when the step is over. So a command costs the
same whether one waits or thousands do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.rules.lease_record import Tombstone, Waiter, counted

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

_FIELDS = "token, session, owner, ttl_ms, since_us"
_JOIN = f"INSERT INTO waiter (name, {_FIELDS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
_FIND = f"SELECT {_FIELDS} FROM waiter WHERE name = ? AND token = ?"  # noqa: S608
_ALL = f"SELECT {_FIELDS} FROM waiter WHERE name = ? ORDER BY ticket"  # noqa: S608
_AHEAD = """
SELECT count(*) FROM waiter
WHERE name = ?1 AND ticket < (SELECT ticket FROM waiter WHERE name = ?1 AND token = ?2)
"""


class Damaged(ValueError):
    """What is stored about a name contradicts itself."""


class _Changes(NamedTuple):
    """What a step has made of the line, and nobody has written yet."""

    joined: tuple[Waiter, ...] = ()
    dropped: frozenset[str] = frozenset()  # tokens
    fallen: frozenset[str] = frozenset()  # clients

    def leave(self, waiter: Waiter) -> bool:
        """Whether a stored waiter still stands."""
        return waiter.token not in self.dropped and waiter.client not in self.fallen


_NONE = _Changes()


class StoredLine:
    """The waiters of a name. `clients` comes from the name's own row, so that no look at the table is needed for it."""

    __slots__ = ("_changes", "_link", "_name", "clients")

    def __init__(self, link: sqlite3.Cursor, name: str, clients: Mapping[str, int], changes: _Changes = _NONE) -> None:
        self._link = link
        self._name = name
        self.clients = clients
        self._changes = changes

    def first(self) -> Waiter | None:
        waiter = next(iter(self), None)
        if waiter is None and self.clients:
            raise Damaged("it counts waiters that are not there")
        return waiter

    def find(self, token: str) -> Waiter | None:
        for waiter in self._changes.joined:
            if waiter.token == token:
                return waiter
        fields = self._link.execute(_FIND, (self._name, token)).fetchone()
        if fields is None:
            return None
        waiter = Waiter(*fields)
        return waiter if self._changes.leave(waiter) else None

    def place(self, token: str) -> int | None:
        if self.find(token) is None:
            return None
        if self._changes is not _NONE:  # somebody has come or gone in this very step
            return next(place for place, waiter in enumerate(self) if waiter.token == token)
        ahead: tuple[int] = self._link.execute(_AHEAD, (self._name, token)).fetchone()
        return ahead[0]

    def joined(self, waiter: Waiter) -> StoredLine:
        joined = (*self._changes.joined, waiter)
        return self._with(counted(self.clients, waiter.client, 1), self._changes._replace(joined=joined))

    def without(self, token: str) -> StoredLine:
        waiter = self.find(token)
        if waiter is None:
            return self
        joined, dropped, fallen = self._changes
        rest = tuple(other for other in joined if other.token != token)
        return self._with(counted(self.clients, waiter.client, -1), _Changes(rest, dropped | {token}, fallen))

    def without_clients(self, fallen: AbstractSet[str]) -> StoredLine:
        joined, dropped, before = self._changes
        rest = tuple(waiter for waiter in joined if waiter.client not in fallen)
        clients = {client: count for client, count in self.clients.items() if client not in fallen}
        return self._with(clients, _Changes(rest, dropped, before | fallen))

    def _with(self, clients: Mapping[str, int], changes: _Changes) -> StoredLine:
        return StoredLine(self._link, self._name, clients, changes)

    def __iter__(self) -> Iterator[Waiter]:
        # A cursor of its own, because whoever looks through the line may ask something else in between.
        stored = map(Waiter._make, self._link.connection.execute(_ALL, (self._name,)))
        yield from filter(self._changes.leave, stored)
        yield from self._changes.joined

    def __len__(self) -> int:
        return sum(self.clients.values())

    def write(self) -> None:
        """Make the table say what the law has said."""
        for token in self._changes.dropped:
            self._link.execute("DELETE FROM waiter WHERE name = ? AND token = ?", (self._name, token))
        for client in self._changes.fallen:
            self._link.execute("DELETE FROM waiter WHERE name = ? AND session = ?", (self._name, client))
        for waiter in self._changes.joined:
            join(self._link, self._name, waiter)


def join(link: sqlite3.Cursor, name: str, waiter: Waiter) -> None:
    """A place at the end of the queue."""
    link.execute(_JOIN, (name, *waiter))


class StoredTombstones:
    """The tombs of a name. `ends_us` comes from the name's own row; what has crumbled is swept with old names."""

    __slots__ = ("_added", "_link", "_name", "ends_us")

    def __init__(self, link: sqlite3.Cursor, name: str, ends_us: int, added: tuple[Tombstone, ...] = ()) -> None:
        self._link = link
        self._name = name
        self.ends_us = ends_us
        self._added = added

    def find(self, token: str, now_us: int) -> Tombstone | None:
        for tombstone in self._added:
            if tombstone.token == token:
                return tombstone
        ask = "SELECT token, until_us, why, detail FROM tomb WHERE name = ? AND token = ? AND until_us > ?"
        fields = self._link.execute(ask, (self._name, token, now_us)).fetchone()
        return None if fields is None else Tombstone(*fields)

    def with_tombstone(self, tombstone: Tombstone, now_us: int) -> StoredTombstones:  # noqa: ARG002 - what has crumbled is swept elsewhere
        return StoredTombstones(
            self._link, self._name, max(self.ends_us, tombstone.until_us), (*self._added, tombstone)
        )

    def write(self) -> None:
        for tombstone in self._added:
            bury(self._link, self._name, tombstone)


def bury(link: sqlite3.Cursor, name: str, tombstone: Tombstone) -> None:
    """One tomb, or another one in its place."""
    link.execute("INSERT OR REPLACE INTO tomb VALUES (?, ?, ?, ?, ?)", (name, *tombstone))
