"""Pools as rows: the state of a pool stays in its tables, and a command reads only the rows that its rule needs.

An index over the last acquisition finds free items, and an index over the time at which they come back finds all
others; the pool's own row has the totals. So a borrow costs the same with ten items as with a hundred thousand.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.commands import POOL
from holdfast.rules.lease_record import Tombstone, Tombstones, checked_fence
from holdfast.rules.pool_state import (
    COOLING,
    FREE,
    OFFERED,
    SHARES_MAX,
    ItemRecord,
    PoolWaiter,
    PoolWaitingLine,
    Share,
    items_of_share,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

SCHEMA = """
CREATE TABLE pool (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,                    -- named items, the permits of a semaphore, or a read-write lock
    name TEXT NOT NULL,
    fence INTEGER NOT NULL,
    permits INTEGER NOT NULL,
    ends_us INTEGER NOT NULL,              -- when the last tombstone ends
    size INTEGER NOT NULL,
    taken INTEGER NOT NULL,
    cooling INTEGER NOT NULL,
    free INTEGER NOT NULL,
    offered INTEGER NOT NULL,
    waiting INTEGER NOT NULL,
    shares INTEGER NOT NULL,
    look_us INTEGER NOT NULL,              -- when the pool can be forgotten
    UNIQUE (kind, name)
);
CREATE INDEX pool_look ON pool (look_us);
CREATE TABLE pool_item (
    pool INTEGER NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    ord INTEGER NOT NULL,
    back_us INTEGER NOT NULL,
    cooldown_ms INTEGER NOT NULL,
    used INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    last TEXT NOT NULL,
    leaving INTEGER NOT NULL,
    token TEXT NOT NULL,
    client TEXT NOT NULL,
    holder TEXT NOT NULL,
    ttl_ms INTEGER NOT NULL,
    tag TEXT NOT NULL,
    ppm INTEGER NOT NULL,
    PRIMARY KEY (pool, name)
) WITHOUT ROWID;
CREATE INDEX pool_item_free ON pool_item (pool, ord) WHERE state = 'free';
CREATE INDEX pool_item_away ON pool_item (pool, back_us) WHERE state <> 'free';
CREATE INDEX pool_item_offered ON pool_item (pool, client) WHERE state = 'offered';
CREATE UNIQUE INDEX pool_item_token ON pool_item (pool, token) WHERE token <> '';
CREATE TABLE pool_share (
    pool INTEGER NOT NULL,
    tag TEXT NOT NULL,
    ppm INTEGER NOT NULL,
    item TEXT NOT NULL,
    ord INTEGER,                           -- the item's ord while the item is free, otherwise NULL
    PRIMARY KEY (pool, tag, ppm, item)
) WITHOUT ROWID;
CREATE INDEX pool_share_free ON pool_share (pool, tag, ppm, ord) WHERE ord IS NOT NULL;
CREATE INDEX pool_share_item ON pool_share (pool, item);
CREATE TABLE pool_waiter (
    ticket INTEGER PRIMARY KEY,            -- the order in which they came
    pool INTEGER NOT NULL,
    token TEXT NOT NULL,
    client TEXT NOT NULL,
    holder TEXT NOT NULL,
    ttl_ms INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    cooldown_ms INTEGER NOT NULL,
    tag TEXT NOT NULL,
    ppm INTEGER NOT NULL
);
CREATE UNIQUE INDEX pool_waiter_token ON pool_waiter (pool, token);
CREATE INDEX pool_waiter_share ON pool_waiter (pool, tag, ppm, ticket);
CREATE TABLE pool_tombstone (
    pool INTEGER NOT NULL,
    token TEXT NOT NULL,
    until_us INTEGER NOT NULL,
    why TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (pool, token)
) WITHOUT ROWID;
CREATE INDEX pool_tombstone_until ON pool_tombstone (until_us);
"""
TABLES = ("pool_item", "pool_share", "pool_waiter", "pool_tombstone")

_NEVER_US = 2**62
_FORGET_AT_ONCE = 20
_FIELDS = (
    "name, state, ord, back_us, cooldown_ms, used, since_us, fence, last, leaving,"
    " token, client, holder, ttl_ms, tag, ppm"
)
_ITEM = f"SELECT {_FIELDS} FROM pool_item WHERE pool = ?"  # noqa: S608 - all texts stand here
_FIND = f"{_ITEM} AND name = ?"
_TAKEN_BY = f"{_ITEM} AND token = ? AND token <> ''"
_NEXT_FREE = f"{_ITEM} AND state = 'free' ORDER BY ord LIMIT 1"
_NEXT_FREE_OF = (
    "SELECT item FROM pool_share WHERE pool = ? AND tag = ? AND ppm = ? AND ord IS NOT NULL ORDER BY ord LIMIT 1"
)
_ADD_SHARE = (
    "INSERT INTO pool_share SELECT item.pool, ?, ?, item.name, CASE item.state WHEN 'free' THEN item.ord END"
    " FROM pool_item AS item WHERE item.pool = ? AND item.name IN (SELECT value FROM json_each(?)) ORDER BY item.name"
)
_AWAY = f"{_ITEM} AND state <> 'free' ORDER BY back_us LIMIT ?"
_AWAY_LAST = f"{_ITEM} AND state <> 'free' ORDER BY back_us DESC LIMIT 1"
_FREE = f"{_ITEM} AND state = 'free' ORDER BY ord LIMIT ?"
_OFFERS = f"{_ITEM} AND state = 'offered' AND client = ?"
_PUT = f"INSERT OR REPLACE INTO pool_item (pool, {_FIELDS}) VALUES (?{', ?' * 16})"  # noqa: S608
_WAITER = "SELECT token, client, holder, ttl_ms, since_us, cooldown_ms, tag, ppm FROM pool_waiter WHERE pool = ?"
_JOIN = (
    "INSERT INTO pool_waiter (pool, token, client, holder, ttl_ms, since_us, cooldown_ms, tag, ppm)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_FIRSTS = "SELECT min(ticket) FROM pool_waiter WHERE pool = ? GROUP BY tag, ppm"
_HEADS = f"{_WAITER} AND ticket IN ({_FIRSTS}) ORDER BY ticket"
_AHEAD = """
SELECT count(*) FROM pool_waiter
WHERE pool = ?1 AND ticket < (SELECT ticket FROM pool_waiter WHERE pool = ?1 AND token = ?2)
"""
_TOTALS = "fence, permits, ends_us, size, taken, cooling, free, offered, waiting, shares"
_LOAD = f"SELECT id, {_TOTALS} FROM pool WHERE kind = ? AND name = ?"  # noqa: S608
_SAVE = f"UPDATE pool SET ({_TOTALS}, look_us) = (?{', ?' * 10}) WHERE id = ?"  # noqa: S608


def _item(fields: Any) -> ItemRecord:
    return ItemRecord._make((*fields[:9], bool(fields[9]), *fields[10:14], Share(*fields[14:])))


def _waiter(fields: Any) -> PoolWaiter:
    return PoolWaiter._make((*fields[:6], Share(*fields[6:])))


class _PoolTotals(NamedTuple):
    """The columns of the pool's own row."""

    fence: int = 0
    permits: int = 0
    ends_us: int = 0
    size: int = 0
    taken: int = 0
    cooling: int = 0
    free: int = 0
    offered: int = 0
    waiting: int = 0
    shares: int = 0


class StoredPoolWaitingLine:
    """The waiting line of one pool."""

    def __init__(self, cursor: sqlite3.Cursor, pool: int, waiting: int) -> None:
        self._cursor = cursor
        self._pool = pool
        self._waiting = waiting

    @property
    def clients(self) -> Mapping[str, int]:
        if not self._waiting:
            return {}
        select = "SELECT client, count(*) FROM pool_waiter WHERE pool = ? GROUP BY client"
        return dict(self._cursor.execute(select, (self._pool,)).fetchall())

    def find(self, token: str) -> PoolWaiter | None:
        if not self._waiting:
            return None
        found = self._cursor.execute(f"{_WAITER} AND token = ?", (self._pool, token)).fetchone()
        return None if found is None else _waiter(found)

    def place(self, token: str) -> int | None:
        if self.find(token) is None:
            return None
        ahead: tuple[int] = self._cursor.execute(_AHEAD, (self._pool, token)).fetchone()
        return ahead[0]

    def heads(self) -> list[PoolWaiter]:
        if not self._waiting:
            return []
        return [_waiter(fields) for fields in self._cursor.execute(_HEADS, (self._pool, self._pool)).fetchall()]

    def join(self, waiter: PoolWaiter) -> None:
        self._cursor.execute(_JOIN, (self._pool, *waiter[:-1], *waiter.share))
        self._waiting += 1

    def leave(self, token: str) -> None:
        if self._waiting:
            self._cursor.execute("DELETE FROM pool_waiter WHERE pool = ? AND token = ?", (self._pool, token))
            self._waiting -= self._cursor.rowcount

    def drop(self, clients: AbstractSet[str]) -> None:
        for client in clients if self._waiting else ():
            self._cursor.execute("DELETE FROM pool_waiter WHERE pool = ? AND client = ?", (self._pool, client))
            self._waiting -= self._cursor.rowcount

    def first(self, limit: int) -> list[PoolWaiter]:
        found = self._cursor.execute(f"{_WAITER} ORDER BY ticket LIMIT ?", (self._pool, limit)).fetchall()
        return [_waiter(fields) for fields in found]

    def __len__(self) -> int:
        return self._waiting


class StoredPoolTombstones:
    """The tombstones of a pool; `forget` deletes ended ones."""

    def __init__(self, cursor: sqlite3.Cursor, pool: int, ends_us: int) -> None:
        self._cursor = cursor
        self._pool = pool
        self.ends_us = ends_us

    def find(self, token: str, now_us: int) -> Tombstone | None:
        if self.ends_us <= now_us:
            return None
        select = "SELECT token, until_us, why, detail FROM pool_tombstone WHERE pool = ? AND token = ? AND until_us > ?"
        found = self._cursor.execute(select, (self._pool, token, now_us)).fetchone()
        return None if found is None else Tombstone(*found)

    def with_tombstone(self, tombstone: Tombstone, now_us: int) -> StoredPoolTombstones:  # noqa: ARG002 - `forget` deletes ended ones
        self._cursor.execute("INSERT OR REPLACE INTO pool_tombstone VALUES (?, ?, ?, ?, ?)", (self._pool, *tombstone))
        return StoredPoolTombstones(self._cursor, self._pool, max(self.ends_us, tombstone.until_us))


class StoredPool:
    """One pool, for the length of one command."""

    def __init__(self, cursor: sqlite3.Cursor, kind: str, name: str) -> None:
        self._cursor, self.kind = cursor, kind
        found = cursor.execute(_LOAD, (kind, name)).fetchone()
        if found is None:
            insert = f"INSERT INTO pool (kind, name, look_us, {_TOTALS}) VALUES (?, ?, 0{', ?' * 10})"  # noqa: S608
            found = (cursor.execute(insert, (kind, name, *_PoolTotals())).lastrowid, *_PoolTotals())
        self._id, totals = found[0], _PoolTotals(*found[1:])
        self.fence, self.permits = checked_fence(totals.fence), totals.permits
        self.size, self._taken, self._cooling, self._free = (totals.size, totals.taken, totals.cooling, totals.free)
        self._offered, self._shares = totals.offered, totals.shares
        self.tombstones: Tombstones = StoredPoolTombstones(cursor, self._id, totals.ends_us)
        self.waiting_line: PoolWaitingLine = StoredPoolWaitingLine(cursor, self._id, totals.waiting)
        self._known: dict[str, ItemRecord] = {}

    def _one(self, select: str, *details: object) -> ItemRecord | None:
        found = self._cursor.execute(select, (self._id, *details)).fetchone()
        return None if found is None else self._remember(_item(found))

    def _remember(self, item: ItemRecord) -> ItemRecord:
        self._known[item.name] = item
        return item

    def counts(self) -> tuple[int, int, int]:
        return self._taken, self._cooling, self._free

    def watched(self) -> AbstractSet[str]:
        clients = set(self.waiting_line.clients)
        if self._offered:
            select = "SELECT DISTINCT client FROM pool_item WHERE pool = ? AND state = 'offered'"
            clients.update(row[0] for row in self._cursor.execute(select, (self._id,)))
        return clients

    def find(self, name: str) -> ItemRecord | None:
        return self._known.get(name) or self._one(_FIND, name)

    def taken_by(self, token: str) -> ItemRecord | None:
        return self._one(_TAKEN_BY, token)

    def offers(self, client: str) -> list[ItemRecord]:
        if not self._offered:
            return []
        return [self._remember(_item(row)) for row in self._cursor.execute(_OFFERS, (self._id, client)).fetchall()]

    def next_free(self, share: Share) -> ItemRecord | None:
        if share.whole:
            return self._one(_NEXT_FREE)
        self._ensure_share(share)
        found = self._cursor.execute(_NEXT_FREE_OF, (self._id, *share)).fetchone()
        return None if found is None else self.find(found[0])

    def due(self, now_us: int) -> ItemRecord | None:
        item = self._one(_AWAY, 1)
        return item if item is not None and item.back_us <= now_us else None

    def next_back_us(self) -> int:
        item = self._one(_AWAY, 1)
        return 0 if item is None else item.back_us

    def last_back_us(self) -> int:
        item = self._one(_AWAY_LAST)
        return 0 if item is None else item.back_us

    def put(self, item: ItemRecord) -> None:
        self._count(self.find(item.name), -1)
        self._count(item, 1)
        *plain, share = item
        self._cursor.execute(_PUT, (self._id, *plain, *share))
        self._known[item.name] = item
        self._move_in_shares(item.name, item.order if item.state == FREE else None)

    def drop(self, name: str) -> None:
        self._count(self.find(name), -1)
        self._cursor.execute("DELETE FROM pool_item WHERE pool = ? AND name = ?", (self._id, name))
        self._known.pop(name, None)
        self._move_in_shares(name, None)

    def _count(self, item: ItemRecord | None, more: int) -> None:
        if item is None:
            return
        self.size += 0 if item.leaving else more
        self._taken += more if item.taken else 0
        self._offered += more if item.state == OFFERED else 0
        self._cooling += more if item.state == COOLING else 0
        self._free += more if item.state == FREE else 0

    def _move_in_shares(self, name: str, order: int | None) -> None:
        if self._shares:
            self._cursor.execute("UPDATE pool_share SET ord = ? WHERE pool = ? AND item = ?", (order, self._id, name))

    def names(self) -> list[str]:
        select = "SELECT name FROM pool_item WHERE pool = ? AND NOT leaving"
        return [row[0] for row in self._cursor.execute(select, (self._id,))]

    def first(self, limit: int) -> list[ItemRecord]:
        away = self._cursor.execute(_AWAY, (self._id, limit)).fetchall()
        free = self._cursor.execute(_FREE, (self._id, limit - len(away))).fetchall()
        return [_item(fields) for fields in (*away, *free)]

    def reset_shares(self) -> None:
        if self._shares:
            self._cursor.execute("DELETE FROM pool_share WHERE pool = ?", (self._id,))
            self._shares = 0

    def _ensure_share(self, share: Share) -> None:
        """Store which items belong to a share, once until the pool changes."""
        select = "SELECT 1 FROM pool_share WHERE pool = ? AND tag = ? AND ppm = ? LIMIT 1"
        if not self.size or self._cursor.execute(select, (self._id, *share)).fetchone() is not None:
            return
        if self._shares >= SHARES_MAX:
            self.reset_shares()
        # Sort as the table does: SQLite writes rows that come in their final order in a fraction of the time.
        names = sorted(items_of_share(self.names(), share, self.size))
        self._cursor.execute(_ADD_SHARE, (*share, self._id, json.dumps(names)))
        self._shares += 1

    def save(self, now_us: int, memory_us: int) -> None:
        """Write the pool's own row. A pool with configured items stays; `forget` deletes others some time after use."""
        look_us = _NEVER_US
        if self.kind != POOL or not self.size:
            last = self._cursor.execute(
                "SELECT max(back_us) FROM pool_item WHERE pool = ? AND state <> 'free'", (self._id,)
            ).fetchone()[0]
            look_us = max(now_us, last or 0, self.tombstones.ends_us) + memory_us
        counts = (self._taken, self._cooling, self._free, self._offered, len(self.waiting_line), self._shares)
        self._cursor.execute(
            _SAVE, (self.fence, self.permits, self.tombstones.ends_us, self.size, *counts, look_us, self._id)
        )


def forget(cursor: sqlite3.Cursor, now_us: int) -> None:
    """Delete a few pools without configured items that were not used for long, and a few ended tombstones."""
    for (pool,) in cursor.execute(
        "SELECT id FROM pool WHERE look_us <= ? LIMIT ?", (now_us, _FORGET_AT_ONCE)
    ).fetchall():
        cursor.execute("DELETE FROM pool WHERE id = ?", (pool,))
        for table in TABLES:
            cursor.execute(f"DELETE FROM {table} WHERE pool = ?", (pool,))  # noqa: S608
    ended = "SELECT pool, token FROM pool_tombstone WHERE until_us <= ? LIMIT ?"
    cursor.execute(f"DELETE FROM pool_tombstone WHERE (pool, token) IN ({ended})", (now_us, 10 * _FORGET_AT_ONCE))  # noqa: S608


def end_previous_boot(cursor: sqlite3.Cursor, now_us: int) -> None:
    """End all leases and waiters of a previous boot, whose times mean nothing now; items that were lent cool first."""
    for table in ("pool_waiter", "pool_tombstone", "pool_share"):
        cursor.execute(f"DELETE FROM {table}")  # noqa: S608
    cursor.execute("DELETE FROM pool_item WHERE leaving")
    cursor.execute(
        "UPDATE pool_item SET state = 'cooling', back_us = ? + cooldown_ms * 1000, token = '', client = '', holder = ''"
        " WHERE state IN ('lent', 'cooling')",
        (now_us,),
    )
    cursor.execute(
        "UPDATE pool_item SET state = 'free', back_us = 0, token = '', client = '', holder = '' WHERE state = 'offered'"
    )
    cursor.execute(
        "UPDATE pool SET (ends_us, taken, offered, waiting, shares) = (0, 0, 0, 0, 0),"
        " size = (SELECT count(*) FROM pool_item WHERE pool_item.pool = pool.id),"
        " cooling = (SELECT count(*) FROM pool_item WHERE pool_item.pool = pool.id AND state = 'cooling'),"
        " free = (SELECT count(*) FROM pool_item WHERE pool_item.pool = pool.id AND state = 'free'),"
        " look_us = CASE look_us WHEN ? THEN look_us ELSE ? END",
        (_NEVER_US, now_us + 60_000_000),
    )
