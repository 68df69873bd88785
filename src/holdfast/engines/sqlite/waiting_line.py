"""Waiters and tombstones that stay in their tables: a command reads only the rows that its rule needs.

These objects keep the changes of a rule beside the stored rows, and `write` stores the changes after the step. So a
command costs the same with one waiter as with thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.rules.lease_record import Tombstone, Waiter, counted

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

_FIELDS = "token, session, holder, ttl_ms, since_us"
_JOIN = f"INSERT INTO waiter (name, {_FIELDS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
_FIND = f"SELECT {_FIELDS} FROM waiter WHERE name = ? AND token = ?"  # noqa: S608
_ALL = f"SELECT {_FIELDS} FROM waiter WHERE name = ? ORDER BY ticket"  # noqa: S608
_AHEAD = """
SELECT count(*) FROM waiter
WHERE name = ?1 AND ticket < (SELECT ticket FROM waiter WHERE name = ?1 AND token = ?2)
"""
_TOMBSTONE = "SELECT token, until_us, why, detail FROM tombstone WHERE name = ? AND token = ? AND until_us > ?"


class Damaged(ValueError):
    """The stored state of a name contradicts itself."""


class _Changes(NamedTuple):
    """The changes of a step to the waiting line that are not written yet."""

    joined: tuple[Waiter, ...] = ()
    dropped_tokens: frozenset[str] = frozenset()
    dropped_clients: frozenset[str] = frozenset()

    def keep(self, waiter: Waiter) -> bool:
        """Return true if a stored waiter still waits."""
        return waiter.token not in self.dropped_tokens and waiter.client not in self.dropped_clients


_NONE = _Changes()


class StoredWaitingLine:
    """The waiting line of a name. `clients` comes from the name's own row, without a read of the table of waiters."""

    __slots__ = ("_changes", "_cursor", "_name", "clients")

    def __init__(
        self, cursor: sqlite3.Cursor, name: str, clients: Mapping[str, int], changes: _Changes = _NONE
    ) -> None:
        self._cursor = cursor
        self._name = name
        self.clients = clients
        self._changes = changes

    def first(self) -> Waiter | None:
        waiter = next(iter(self), None)
        if waiter is None and self.clients:
            raise Damaged("its row counts waiters that have no rows")
        return waiter

    def find(self, token: str) -> Waiter | None:
        for waiter in self._changes.joined:
            if waiter.token == token:
                return waiter
        fields = self._cursor.execute(_FIND, (self._name, token)).fetchone()
        if fields is None:
            return None
        waiter = Waiter(*fields)
        return waiter if self._changes.keep(waiter) else None

    def place(self, token: str) -> int | None:
        if self.find(token) is None:
            return None
        if self._changes is not _NONE:  # a waiter has joined or left in this very step
            return next(position for position, waiter in enumerate(self) if waiter.token == token)
        ahead: tuple[int] = self._cursor.execute(_AHEAD, (self._name, token)).fetchone()
        return ahead[0]

    def joined(self, waiter: Waiter) -> StoredWaitingLine:
        joined = (*self._changes.joined, waiter)
        return self._with(counted(self.clients, waiter.client, 1), self._changes._replace(joined=joined))

    def without(self, token: str) -> StoredWaitingLine:
        waiter = self.find(token)
        if waiter is None:
            return self
        joined, tokens, clients = self._changes
        rest = tuple(other for other in joined if other.token != token)
        return self._with(counted(self.clients, waiter.client, -1), _Changes(rest, tokens | {token}, clients))

    def without_clients(self, dropped: AbstractSet[str]) -> StoredWaitingLine:
        joined, tokens, before = self._changes
        rest = tuple(waiter for waiter in joined if waiter.client not in dropped)
        clients = {client: count for client, count in self.clients.items() if client not in dropped}
        return self._with(clients, _Changes(rest, tokens, before | dropped))

    def _with(self, clients: Mapping[str, int], changes: _Changes) -> StoredWaitingLine:
        return StoredWaitingLine(self._cursor, self._name, clients, changes)

    def __iter__(self) -> Iterator[Waiter]:
        # Use a separate cursor, because the caller may use the shared one between two waiters.
        stored = map(Waiter._make, self._cursor.connection.execute(_ALL, (self._name,)))
        yield from filter(self._changes.keep, stored)
        yield from self._changes.joined

    def __len__(self) -> int:
        return sum(self.clients.values())

    def write(self) -> None:
        """Store the changes."""
        for token in self._changes.dropped_tokens:
            self._cursor.execute("DELETE FROM waiter WHERE name = ? AND token = ?", (self._name, token))
        for client in self._changes.dropped_clients:
            self._cursor.execute("DELETE FROM waiter WHERE name = ? AND session = ?", (self._name, client))
        for waiter in self._changes.joined:
            join(self._cursor, self._name, waiter)


def join(cursor: sqlite3.Cursor, name: str, waiter: Waiter) -> None:
    """Store a waiter at the end of the waiting line."""
    cursor.execute(_JOIN, (name, *waiter))


class StoredTombstones:
    """The tombstones of a name. `ends_us` comes from the name's own row; `lease_rows.forget` deletes ended ones."""

    __slots__ = ("_added", "_cursor", "_name", "ends_us")

    def __init__(self, cursor: sqlite3.Cursor, name: str, ends_us: int, added: tuple[Tombstone, ...] = ()) -> None:
        self._cursor = cursor
        self._name = name
        self.ends_us = ends_us
        self._added = added

    def find(self, token: str, now_us: int) -> Tombstone | None:
        for tombstone in self._added:
            if tombstone.token == token:
                return tombstone
        fields = self._cursor.execute(_TOMBSTONE, (self._name, token, now_us)).fetchone()
        return None if fields is None else Tombstone(*fields)

    def with_tombstone(self, tombstone: Tombstone, now_us: int) -> StoredTombstones:  # noqa: ARG002 - `forget` deletes ended ones
        ends_us = max(self.ends_us, tombstone.until_us)
        return StoredTombstones(self._cursor, self._name, ends_us, (*self._added, tombstone))

    def write(self) -> None:
        """Store the added tombstones."""
        for tombstone in self._added:
            add_tombstone(self._cursor, self._name, tombstone)


def add_tombstone(cursor: sqlite3.Cursor, name: str, tombstone: Tombstone) -> None:
    """Store a tombstone, in place of an older one of its token."""
    cursor.execute("INSERT OR REPLACE INTO tombstone VALUES (?, ?, ?, ?, ?)", (name, *tombstone))
