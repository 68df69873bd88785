"""Pools as rows: the stock that the law asks stays in its tables, and only what it asks for is looked up.

Free items are found by an index over their last acquisition, all others by one over the time at which they come back;
figures stand in the pool's own row. So a borrow costs the same whether a pool has ten items or a hundred thousand.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.commands import POOL
from holdfast.rules.lease_record import Tombstone, Tombstones
from holdfast.rules.pool_state import (
    COOLING,
    FREE,
    OFFERED,
    SHARES_MAX,
    ItemRecord,
    PoolWaiter,
    PoolWaitingLine,
    Share,
    chosen,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

SCHEMA = """
CREATE TABLE pool (
    id INTEGER PRIMARY KEY,
    roof TEXT NOT NULL,                    -- what kind of pool: named items, or the seats of a semaphore
    name TEXT NOT NULL,
    fence INTEGER NOT NULL,
    permits INTEGER NOT NULL,
    ends_us INTEGER NOT NULL,              -- when the last tomb crumbles
    size INTEGER NOT NULL,
    taken INTEGER NOT NULL,
    cooling INTEGER NOT NULL,
    free INTEGER NOT NULL,
    offered INTEGER NOT NULL,
    waiting INTEGER NOT NULL,
    shares INTEGER NOT NULL,
    look_us INTEGER NOT NULL,              -- when it can be forgotten
    UNIQUE (roof, name)
);
CREATE INDEX pool_look ON pool (look_us);
CREATE TABLE pool_item (
    pool INTEGER NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    ord INTEGER NOT NULL,
    back_us INTEGER NOT NULL,
    rest_ms INTEGER NOT NULL,
    used INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    last TEXT NOT NULL,
    leaving INTEGER NOT NULL,
    token TEXT NOT NULL,
    client TEXT NOT NULL,
    owner TEXT NOT NULL,
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
    ord INTEGER,                           -- as the item's while it is free, else nothing
    PRIMARY KEY (pool, tag, ppm, item)
) WITHOUT ROWID;
CREATE INDEX pool_share_free ON pool_share (pool, tag, ppm, ord) WHERE ord IS NOT NULL;
CREATE INDEX pool_share_item ON pool_share (pool, item);
CREATE TABLE pool_seeker (
    ticket INTEGER PRIMARY KEY,            -- the order in which they came
    pool INTEGER NOT NULL,
    token TEXT NOT NULL,
    client TEXT NOT NULL,
    owner TEXT NOT NULL,
    ttl_ms INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    rest_ms INTEGER NOT NULL,
    tag TEXT NOT NULL,
    ppm INTEGER NOT NULL
);
CREATE UNIQUE INDEX pool_seeker_token ON pool_seeker (pool, token);
CREATE INDEX pool_seeker_share ON pool_seeker (pool, tag, ppm, ticket);
CREATE TABLE pool_tomb (
    pool INTEGER NOT NULL,
    token TEXT NOT NULL,
    until_us INTEGER NOT NULL,
    why TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (pool, token)
) WITHOUT ROWID;
CREATE INDEX pool_tomb_until ON pool_tomb (until_us);
"""
TABLES = ("pool_item", "pool_share", "pool_seeker", "pool_tomb")

_NEVER_US = 2**62
_FORGET_AT_ONCE = 20
_FIELDS = (
    "name, state, ord, back_us, rest_ms, used, since_us, fence, last, leaving, token, client, owner, ttl_ms, tag, ppm"
)
_ITEM = f"SELECT {_FIELDS} FROM pool_item WHERE pool = ?"  # noqa: S608 - of our own words
_FIND = f"{_ITEM} AND name = ?"
_TAKEN_BY = f"{_ITEM} AND token = ? AND token <> ''"
_FREEST = f"{_ITEM} AND state = 'free' ORDER BY ord LIMIT 1"
_FREEST_OF = (
    "SELECT item FROM pool_share WHERE pool = ? AND tag = ? AND ppm = ? AND ord IS NOT NULL ORDER BY ord LIMIT 1"
)
_ENROL = (
    "INSERT INTO pool_share SELECT item.pool, ?, ?, item.name, CASE item.state WHEN 'free' THEN item.ord END"
    " FROM pool_item AS item WHERE item.pool = ? AND item.name IN (SELECT value FROM json_each(?)) ORDER BY item.name"
)
_AWAY = f"{_ITEM} AND state <> 'free' ORDER BY back_us LIMIT ?"
_AWAY_LAST = f"{_ITEM} AND state <> 'free' ORDER BY back_us DESC LIMIT 1"
_FREE = f"{_ITEM} AND state = 'free' ORDER BY ord LIMIT ?"
_OFFERS = f"{_ITEM} AND state = 'offered' AND client = ?"
_PUT = f"INSERT OR REPLACE INTO pool_item (pool, {_FIELDS}) VALUES (?{', ?' * 16})"  # noqa: S608
_SEEKER = "SELECT token, client, owner, ttl_ms, since_us, rest_ms, tag, ppm FROM pool_seeker WHERE pool = ?"
_JOIN = (
    "INSERT INTO pool_seeker (pool, token, client, owner, ttl_ms, since_us, rest_ms, tag, ppm)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_FIRSTS = "SELECT min(ticket) FROM pool_seeker WHERE pool = ? GROUP BY tag, ppm"
_HEADS = f"{_SEEKER} AND ticket IN ({_FIRSTS}) ORDER BY ticket"
_AHEAD = """
SELECT count(*) FROM pool_seeker
WHERE pool = ?1 AND ticket < (SELECT ticket FROM pool_seeker WHERE pool = ?1 AND token = ?2)
"""
_FIGURES = "fence, permits, ends_us, size, taken, cooling, free, offered, waiting, shares"
_LOAD = f"SELECT id, {_FIGURES} FROM pool WHERE roof = ? AND name = ?"  # noqa: S608
_SAVE = f"UPDATE pool SET ({_FIGURES}, look_us) = (?{', ?' * 10}) WHERE id = ?"  # noqa: S608


def _item(fields: Any) -> ItemRecord:
    return ItemRecord._make((*fields[:9], bool(fields[9]), *fields[10:14], Share(*fields[14:])))


def _seeker(fields: Any) -> PoolWaiter:
    return PoolWaiter._make((*fields[:6], Share(*fields[6:])))


class _Figures(NamedTuple):
    """What stands in the pool's own row."""

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


class StoredQueue:
    """Those who wait for an item of one pool."""

    def __init__(self, link: sqlite3.Cursor, pool: int, waiting: int) -> None:
        self._link = link
        self._pool = pool
        self._waiting = waiting

    @property
    def clients(self) -> Mapping[str, int]:
        if not self._waiting:
            return {}
        ask = "SELECT client, count(*) FROM pool_seeker WHERE pool = ? GROUP BY client"
        return dict(self._link.execute(ask, (self._pool,)).fetchall())

    def find(self, token: str) -> PoolWaiter | None:
        if not self._waiting:
            return None
        found = self._link.execute(f"{_SEEKER} AND token = ?", (self._pool, token)).fetchone()
        return None if found is None else _seeker(found)

    def place(self, token: str) -> int | None:
        if self.find(token) is None:
            return None
        ahead: tuple[int] = self._link.execute(_AHEAD, (self._pool, token)).fetchone()
        return ahead[0]

    def heads(self) -> list[PoolWaiter]:
        if not self._waiting:
            return []
        return [_seeker(fields) for fields in self._link.execute(_HEADS, (self._pool, self._pool)).fetchall()]

    def join(self, seeker: PoolWaiter) -> None:
        self._link.execute(_JOIN, (self._pool, *seeker[:-1], *seeker.share))
        self._waiting += 1

    def leave(self, token: str) -> None:
        if self._waiting:
            self._link.execute("DELETE FROM pool_seeker WHERE pool = ? AND token = ?", (self._pool, token))
            self._waiting -= self._link.rowcount

    def drop(self, fallen: AbstractSet[str]) -> None:
        for client in fallen if self._waiting else ():
            self._link.execute("DELETE FROM pool_seeker WHERE pool = ? AND client = ?", (self._pool, client))
            self._waiting -= self._link.rowcount

    def first(self, limit: int) -> list[PoolWaiter]:
        found = self._link.execute(f"{_SEEKER} ORDER BY ticket LIMIT ?", (self._pool, limit)).fetchall()
        return [_seeker(fields) for fields in found]

    def __len__(self) -> int:
        return self._waiting


class StoredPoolTombstones:
    """The tombs of a pool; what has crumbled is swept with old pools."""

    def __init__(self, link: sqlite3.Cursor, pool: int, ends_us: int) -> None:
        self._link = link
        self._pool = pool
        self.ends_us = ends_us

    def find(self, token: str, now_us: int) -> Tombstone | None:
        if self.ends_us <= now_us:
            return None
        ask = "SELECT token, until_us, why, detail FROM pool_tomb WHERE pool = ? AND token = ? AND until_us > ?"
        found = self._link.execute(ask, (self._pool, token, now_us)).fetchone()
        return None if found is None else Tombstone(*found)

    def with_tombstone(self, tombstone: Tombstone, now_us: int) -> StoredPoolTombstones:  # noqa: ARG002 - as in line.py
        self._link.execute("INSERT OR REPLACE INTO pool_tomb VALUES (?, ?, ?, ?, ?)", (self._pool, *tombstone))
        return StoredPoolTombstones(self._link, self._pool, max(self.ends_us, tombstone.until_us))


class StoredPool:
    """One pool, for the length of one command."""

    def __init__(self, link: sqlite3.Cursor, kind: str, name: str) -> None:
        self._link, self.kind = link, kind
        found = link.execute(_LOAD, (kind, name)).fetchone()
        if found is None:
            ask = f"INSERT INTO pool (roof, name, look_us, {_FIGURES}) VALUES (?, ?, 0{', ?' * 10})"  # noqa: S608
            found = (link.execute(ask, (kind, name, *_Figures())).lastrowid, *_Figures())
        self._id, figures = found[0], _Figures(*found[1:])
        self.fence, self.permits = figures.fence, figures.permits
        self.size, self._taken, self._cooling, self._free = figures.size, figures.taken, figures.cooling, figures.free
        self._offered, self._shares = figures.offered, figures.shares
        self.tombstones: Tombstones = StoredPoolTombstones(link, self._id, figures.ends_us)
        self.waiting_line: PoolWaitingLine = StoredQueue(link, self._id, figures.waiting)
        self._known: dict[str, ItemRecord] = {}

    def _one(self, ask: str, *details: object) -> ItemRecord | None:
        found = self._link.execute(ask, (self._id, *details)).fetchone()
        return None if found is None else self._seen(_item(found))

    def _seen(self, item: ItemRecord) -> ItemRecord:
        self._known[item.name] = item
        return item

    def counts(self) -> tuple[int, int, int]:
        return self._taken, self._cooling, self._free

    def watched(self) -> AbstractSet[str]:
        clients = set(self.waiting_line.clients)
        if self._offered:
            ask = "SELECT DISTINCT client FROM pool_item WHERE pool = ? AND state = 'offered'"
            clients.update(row[0] for row in self._link.execute(ask, (self._id,)))
        return clients

    def find(self, name: str) -> ItemRecord | None:
        return self._known.get(name) or self._one(_FIND, name)

    def taken_by(self, token: str) -> ItemRecord | None:
        return self._one(_TAKEN_BY, token)

    def offers(self, client: str) -> list[ItemRecord]:
        if not self._offered:
            return []
        return [self._seen(_item(row)) for row in self._link.execute(_OFFERS, (self._id, client)).fetchall()]

    def next_free(self, share: Share) -> ItemRecord | None:
        if share.whole:
            return self._one(_FREEST)
        self._gather(share)
        found = self._link.execute(_FREEST_OF, (self._id, *share)).fetchone()
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
        self._link.execute(_PUT, (self._id, *plain, *share))
        self._known[item.name] = item
        self._shift(item.name, item.order if item.state == FREE else None)

    def drop(self, name: str) -> None:
        self._count(self.find(name), -1)
        self._link.execute("DELETE FROM pool_item WHERE pool = ? AND name = ?", (self._id, name))
        self._known.pop(name, None)
        self._shift(name, None)

    def _count(self, item: ItemRecord | None, more: int) -> None:
        if item is None:
            return
        self.size += 0 if item.leaving else more
        self._taken += more if item.taken else 0
        self._offered += more if item.state == OFFERED else 0
        self._cooling += more if item.state == COOLING else 0
        self._free += more if item.state == FREE else 0

    def _shift(self, name: str, order: int | None) -> None:
        if self._shares:
            self._link.execute("UPDATE pool_share SET ord = ? WHERE pool = ? AND item = ?", (order, self._id, name))

    def names(self) -> list[str]:
        ask = "SELECT name FROM pool_item WHERE pool = ? AND NOT leaving"
        return [row[0] for row in self._link.execute(ask, (self._id,))]

    def first(self, limit: int) -> list[ItemRecord]:
        away = self._link.execute(_AWAY, (self._id, limit)).fetchall()
        free = self._link.execute(_FREE, (self._id, limit - len(away))).fetchall()
        return [_item(fields) for fields in (*away, *free)]

    def reset_shares(self) -> None:
        if self._shares:
            self._link.execute("DELETE FROM pool_share WHERE pool = ?", (self._id,))
            self._shares = 0

    def _gather(self, share: Share) -> None:
        """Look out the items of a share, once for all until the pool changes."""
        ask = "SELECT 1 FROM pool_share WHERE pool = ? AND tag = ? AND ppm = ? LIMIT 1"
        if not self.size or self._link.execute(ask, (self._id, *share)).fetchone() is not None:
            return
        if self._shares >= SHARES_MAX:
            self.reset_shares()
        # In the order of the table: rows that come as they will lie are written in a fraction of the time.
        names = sorted(chosen(self.names(), share, self.size))
        self._link.execute(_ENROL, (*share, self._id, json.dumps(names)))
        self._shares += 1

    def save(self, now_us: int, memory_us: int) -> None:
        """Write the pool's own row. One that somebody has set up stays; others are forgotten after their last use."""
        look_us = _NEVER_US
        if self.kind != POOL or not self.size:
            last = self._link.execute(
                "SELECT max(back_us) FROM pool_item WHERE pool = ? AND state <> 'free'", (self._id,)
            ).fetchone()[0]
            look_us = max(now_us, last or 0, self.tombstones.ends_us) + memory_us
        counts = (self._taken, self._cooling, self._free, self._offered, len(self.waiting_line), self._shares)
        self._link.execute(
            _SAVE, (self.fence, self.permits, self.tombstones.ends_us, self.size, *counts, look_us, self._id)
        )


def forget(link: sqlite3.Cursor, now_us: int) -> None:
    """Drop a few pools that nobody has set up or used for long, and a few crumbled tombs."""
    for (pool,) in link.execute("SELECT id FROM pool WHERE look_us <= ? LIMIT ?", (now_us, _FORGET_AT_ONCE)).fetchall():
        link.execute("DELETE FROM pool WHERE id = ?", (pool,))
        for table in TABLES:
            link.execute(f"DELETE FROM {table} WHERE pool = ?", (pool,))  # noqa: S608
    crumbled = "SELECT pool, token FROM pool_tomb WHERE until_us <= ? LIMIT ?"
    link.execute(f"DELETE FROM pool_tomb WHERE (pool, token) IN ({crumbled})", (now_us, 10 * _FORGET_AT_ONCE))  # noqa: S608


def begin_anew(link: sqlite3.Cursor, now_us: int) -> None:
    """Times of another boot mean nothing, and its processes are gone. Items stay; those that were away rest first."""
    for table in ("pool_seeker", "pool_tomb", "pool_share"):
        link.execute(f"DELETE FROM {table}")  # noqa: S608
    link.execute("DELETE FROM pool_item WHERE leaving")
    link.execute(
        "UPDATE pool_item SET state = 'cooling', back_us = ? + rest_ms * 1000, token = '', client = '', owner = ''"
        " WHERE state IN ('lent', 'cooling')",
        (now_us,),
    )
    link.execute(
        "UPDATE pool_item SET state = 'free', back_us = 0, token = '', client = '', owner = '' WHERE state = 'offered'"
    )
    link.execute(
        "UPDATE pool SET (ends_us, taken, offered, waiting, shares) = (0, 0, 0, 0, 0),"
        " size = (SELECT count(*) FROM pool_item WHERE pool_item.pool = pool.id),"
        " cooling = (SELECT count(*) FROM pool_item WHERE pool_item.pool = pool.id AND state = 'cooling'),"
        " free = (SELECT count(*) FROM pool_item WHERE pool_item.pool = pool.id AND state = 'free'),"
        " look_us = CASE look_us WHEN ? THEN look_us ELSE ? END",
        (_NEVER_US, now_us + 60_000_000),
    )
