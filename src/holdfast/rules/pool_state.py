"""The state that the rules of pools read and change: items, and the waiting line for an item.

The rules use the small interface `PoolState`. So an engine looks up only the items that a rule needs, and a borrow
costs the same whether a pool has ten items or a hundred thousand. `MemoryPoolState` keeps all items in memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from hashlib import sha1
from itertools import islice
from typing import NamedTuple, Protocol

from holdfast.commands import POOL, SEMAPHORE, WHOLE_PPM
from holdfast.rules.journal import ABSENT, Journal, Journaled
from holdfast.rules.lease_record import NO_TOMBSTONES, Tombstones, counted

FREE, OFFERED, LENT, COOLING = "free", "offered", "lent", "cooling"
SHARES_MAX = 256
_SPARE = 64


class Share(NamedTuple):
    """The part of a pool that a tag may use, in millionths of its items; always the same items."""

    tag: str = ""
    ppm: int = WHOLE_PPM

    @property
    def whole(self) -> bool:
        return self.ppm >= WHOLE_PPM


WHOLE = Share()


class ItemRecord(NamedTuple):
    """One item of a pool, with its present lease.

    `order` is the fence of the last acquisition; before the first one it is a small number, different per item.
    `back_us`: the end of the lease, the offer or the cooldown. `cooldown_ms`: how long the item cools if its lease
    expires; while it cools, the length of this cooldown. `last`: the token that returned the item last.
    """

    name: str
    state: str
    order: int
    back_us: int = 0
    cooldown_ms: int = 0
    used: int = 0
    since_us: int = 0
    fence: int = 0
    last: str = ""
    leaving: bool = False
    token: str = ""
    client: str = ""
    holder: str = ""
    ttl_ms: int = 0
    share: Share = WHOLE

    @property
    def taken(self) -> bool:
        """True if the item is lent or offered."""
        return self.state in (LENT, OFFERED)


class PoolWaiter(NamedTuple):
    """One waiter in the waiting line of a pool."""

    token: str
    client: str
    holder: str
    ttl_ms: int
    since_us: int
    cooldown_ms: int
    share: Share


class PoolWaitingLine(Protocol):
    """The waiters for an item, in order of arrival."""

    @property
    def clients(self) -> Mapping[str, int]:
        """The number of waiters of each client that has some."""

    def find(self, token: str) -> PoolWaiter | None:
        """Return the waiter with this token."""

    def place(self, token: str) -> int | None:
        """Return the number of waiters before this token; `None` if it does not wait."""

    def heads(self) -> list[PoolWaiter]:
        """Return the first waiter of each share, in order of arrival."""

    def join(self, waiter: PoolWaiter) -> None:
        """Add a waiter at the end."""

    def leave(self, token: str) -> None:
        """Remove the waiter with this token, if there is one."""

    def drop(self, clients: AbstractSet[str]) -> None:
        """Remove all waiters of these clients."""

    def first(self, limit: int) -> list[PoolWaiter]:
        """Return at most `limit` waiters from the front."""

    def __len__(self) -> int: ...


class PoolState(Protocol):
    """A pool, as the rules see it."""

    kind: str
    fence: int
    permits: int
    tombstones: Tombstones
    waiting_line: PoolWaitingLine

    @property
    def size(self) -> int:
        """The number of items, without leaving ones."""

    def counts(self) -> tuple[int, int, int]:
        """Return how many items are taken, cooling and free."""

    def watched(self) -> AbstractSet[str]:
        """Return the clients whose heartbeats matter: clients with a waiter or an offer."""

    def find(self, name: str) -> ItemRecord | None:
        """Return the item of this name."""

    def taken_by(self, token: str) -> ItemRecord | None:
        """Return the item that is lent or offered to this token."""

    def offers(self, client: str) -> list[ItemRecord]:
        """Return the items that are offered to this client."""

    def next_free(self, share: Share) -> ItemRecord | None:
        """Return the free item of this share that was acquired longest ago."""

    def due(self, now_us: int) -> ItemRecord | None:
        """Return the item whose lease, offer or cooldown ended first, if one has ended."""

    def next_back_us(self) -> int:
        """Return the earliest end of a lease, offer or cooldown; 0 if there is none."""

    def last_back_us(self) -> int:
        """Return the latest end of a lease, offer or cooldown; 0 if there is none."""

    def put(self, item: ItemRecord) -> None:
        """Store the item."""

    def drop(self, name: str) -> None:
        """Remove the item."""

    def names(self) -> list[str]:
        """Return the names of the items, without leaving ones."""

    def first(self, limit: int) -> list[ItemRecord]:
        """Return at most `limit` items: first the taken and cooling ones by their end, then the free ones in order."""

    def reset_shares(self) -> None:
        """Forget the shares, because the items changed."""


def share_size(size: int, ppm: int) -> int:
    """Return how many items a share has: rounded down, at least one."""
    return max(1, size * ppm // WHOLE_PPM)


def items_of_share(names: Iterable[str], share: Share, size: int) -> list[str]:
    """Return the items of a share: the items with the lowest hash of tag and name. So each tag keeps its own items."""

    def rank(name: str) -> tuple[str, str]:
        return sha1(f"{share.tag}\n{name}".encode()).hexdigest(), name  # noqa: S324 - Lua scripts have only SHA-1; no secret

    return sorted(names, key=rank)[: share_size(size, share.ppm)]


class MemoryPoolWaitingLine:
    """A waiting line in memory. The waiters and their tickets are the data; the rest follows from them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._by_token: dict[str, PoolWaiter] = {}
        self._tickets: dict[str, int] = {}
        self._by_share: dict[Share, dict[str, int]] = {}
        self._ticket = 0
        self.clients: Mapping[str, int] = {}

    def reindex(self) -> None:
        """Build the order of the line again after a rollback."""
        in_order = sorted(self._by_token, key=self._tickets.__getitem__)
        self._by_token = {token: self._by_token[token] for token in in_order}
        by_share: dict[Share, dict[str, int]] = {}
        clients: Mapping[str, int] = {}
        for token, waiter in self._by_token.items():
            by_share.setdefault(waiter.share, {})[token] = self._tickets[token]
            clients = counted(clients, waiter.client, 1)
        self._by_share, self.clients = by_share, clients

    def find(self, token: str) -> PoolWaiter | None:
        return self._by_token.get(token)

    def place(self, token: str) -> int | None:
        return list(self._by_token).index(token) if token in self._by_token else None

    def heads(self) -> list[PoolWaiter]:
        firsts = sorted(
            (ticket, token) for line in self._by_share.values() for token, ticket in islice(line.items(), 1)
        )
        return [self._by_token[token] for _, token in firsts]

    def join(self, waiter: PoolWaiter) -> None:
        self._ticket += 1
        self._journal.note(self._by_token, waiter.token)
        self._journal.note(self._tickets, waiter.token)
        self._by_token[waiter.token] = waiter
        self._tickets[waiter.token] = self._ticket
        self._by_share.setdefault(waiter.share, {})[waiter.token] = self._ticket
        self.clients = counted(self.clients, waiter.client, 1)

    def leave(self, token: str) -> None:
        waiter = self._by_token.get(token)
        if waiter is None:
            return
        self._journal.note(self._by_token, token)
        self._journal.note(self._tickets, token)
        del self._by_token[token], self._tickets[token]
        line = self._by_share[waiter.share]
        del line[token]
        if not line:
            del self._by_share[waiter.share]
        self.clients = counted(self.clients, waiter.client, -1)

    def drop(self, clients: AbstractSet[str]) -> None:
        if self.clients.keys() & clients:
            for token in [token for token, waiter in self._by_token.items() if waiter.client in clients]:
                self.leave(token)

    def first(self, limit: int) -> list[PoolWaiter]:
        return list(islice(self._by_token.values(), limit))

    def __len__(self) -> int:
        return len(self._by_token)


class _Order:
    """Names ordered by a number, lowest first. `lowest` skips pairs whose number is no longer the current one."""

    def __init__(self, pairs: Iterable[tuple[int, str]] = ()) -> None:
        self._heap = list(pairs)
        heapq.heapify(self._heap)

    def add(self, number: int, name: str) -> None:
        heapq.heappush(self._heap, (number, name))

    def lowest(self, current: Mapping[str, int]) -> tuple[int, str] | None:
        while self._heap:
            number, name = self._heap[0]
            if current.get(name) == number:
                return number, name
            heapq.heappop(self._heap)
        return None

    def tidy(self, current: Mapping[str, int]) -> None:
        """Rebuild the heap if most of its pairs are outdated."""
        if len(self._heap) > 2 * len(current) + _SPARE:
            self._heap = [(number, name) for name, number in current.items() if number >= 0]
            heapq.heapify(self._heap)


class MemoryPoolState(Journaled):
    """The state of a pool in memory. The items and the waiting line are the data; the rest follows from them."""

    def __init__(self, kind: str = POOL) -> None:
        super().__init__()
        self.kind = kind
        self.fence = 0
        self.permits = 0
        self.tombstones: Tombstones = NO_TOMBSTONES
        self.waiting_line: PoolWaitingLine = MemoryPoolWaitingLine(self.journal)
        self._items: dict[str, ItemRecord] = {}
        self._clear_indexes()

    def _clear_indexes(self) -> None:
        self._tokens: dict[str, str] = {}
        self._offered: dict[str, str] = {}  # token -> client
        self._cooling = self._leaving = 0
        self._free: dict[str, int] = {}
        self._unavailable: dict[str, int] = {}
        self._by_order, self._by_back = _Order(), _Order()
        self._shares: dict[Share, tuple[dict[str, int], _Order]] = {}  # the free items of each share; -1: not free

    def _reindex(self) -> None:
        assert isinstance(self.waiting_line, MemoryPoolWaitingLine)
        self.waiting_line.reindex()
        self._clear_indexes()
        for item in self._items.values():
            self._add(item)
        self.permits = self.size if self.kind == SEMAPHORE else 0

    @property
    def size(self) -> int:
        return len(self._items) - self._leaving

    def counts(self) -> tuple[int, int, int]:
        return len(self._tokens), self._cooling, len(self._free)

    def watched(self) -> AbstractSet[str]:
        return {*self.waiting_line.clients, *self._offered.values()}

    def find(self, name: str) -> ItemRecord | None:
        return self._items.get(name)

    def taken_by(self, token: str) -> ItemRecord | None:
        return self._items.get(self._tokens.get(token, ""))

    def offers(self, client: str) -> list[ItemRecord]:
        return [self._items[self._tokens[token]] for token, other in self._offered.items() if other == client]

    def next_free(self, share: Share) -> ItemRecord | None:
        free, order = (self._free, self._by_order) if share.whole else self._share(share)
        found = order.lowest(free)
        return None if found is None else self._items[found[1]]

    def due(self, now_us: int) -> ItemRecord | None:
        found = self._by_back.lowest(self._unavailable)
        return self._items[found[1]] if found is not None and found[0] <= now_us else None

    def next_back_us(self) -> int:
        found = self._by_back.lowest(self._unavailable)
        return 0 if found is None else found[0]

    def last_back_us(self) -> int:
        return max(self._unavailable.values(), default=0)

    def put(self, item: ItemRecord) -> None:
        self.journal.append((self._items, item.name, self._forget(item.name)))
        self._items[item.name] = item
        self._add(item)

    def _add(self, item: ItemRecord) -> None:
        """Add the item to every index."""
        self._cooling += item.state == COOLING
        self._leaving += item.leaving
        if item.taken:
            self._tokens[item.token] = item.name
        if item.state == OFFERED:
            self._offered[item.token] = item.client
        if item.state != FREE:
            self._unavailable[item.name] = item.back_us
            self._by_back.add(item.back_us, item.name)
            self._by_back.tidy(self._unavailable)
            return
        self._free[item.name] = item.order
        self._by_order.add(item.order, item.name)
        self._by_order.tidy(self._free)
        for free, order in self._shares.values():
            if item.name in free:
                free[item.name] = item.order
                order.add(item.order, item.name)
                order.tidy(free)

    def drop(self, name: str) -> None:
        self.journal.append((self._items, name, self._forget(name)))
        self._items.pop(name, None)

    def _forget(self, name: str) -> ItemRecord:
        """Remove the item from every index; the item itself stays. Return it, or `ABSENT`."""
        before: ItemRecord = self._items.get(name, ABSENT)
        if before is ABSENT:
            return before  # type: ignore[no-any-return]
        # With an entry in the journal, an interrupt on the following lines leads to a rollback.
        self.journal.append((self._items, name, before))
        self._cooling -= before.state == COOLING
        self._leaving -= before.leaving
        self._tokens.pop(before.token, None)
        self._offered.pop(before.token, None)
        self._unavailable.pop(name, None)
        self._free.pop(name, None)
        for free, _ in self._shares.values():
            if name in free:
                free[name] = -1  # part of this share, but not free
        return before

    def names(self) -> list[str]:
        return [name for name, item in self._items.items() if not item.leaving]

    def first(self, limit: int) -> list[ItemRecord]:
        away = heapq.nsmallest(limit, ((back_us, name) for name, back_us in self._unavailable.items()))
        free = heapq.nsmallest(limit - len(away), ((order, name) for name, order in self._free.items()))
        return [self._items[name] for _, name in (*away, *free)]

    def reset_shares(self) -> None:
        self._shares.clear()

    def _share(self, share: Share) -> tuple[dict[str, int], _Order]:
        if share not in self._shares:
            if len(self._shares) >= SHARES_MAX:
                self._shares.clear()
            free = {name: self._free.get(name, -1) for name in items_of_share(self.names(), share, self.size)}
            order = _Order((number, name) for name, number in free.items() if number >= 0)
            self._shares[share] = free, order
        return self._shares[share]
