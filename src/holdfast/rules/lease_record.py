"""The state that the rules of a lease work on: a name's record, its waiting line, and the tombstones of ended tokens.

All of them are immutable values: a change returns a new value. The rules use the waiting line and the tombstones
through small protocols, so that an engine can look up single rows instead of loading all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

_SWEEP_MIN = 64

FENCE_MAX = 2**53 - 1  # so that every resource, scripts in Lua included, can compare it exactly
# The largest fence that a record may have. The clock reaches it in 2255. Every batch of fences after it is below the
# maximum.
STORED_FENCE_MAX = FENCE_MAX - 2**20


def checked_fence(fence: object) -> int:
    """Return the fence of a stored record; raise `ValueError` if holdfast cannot have written it."""
    if type(fence) is not int or not 0 <= fence <= STORED_FENCE_MAX:
        raise ValueError(f"it has the fence {fence!r:.40}, and fences are whole numbers up to {STORED_FENCE_MAX}")
    return fence


class HolderRecord(NamedTuple):
    """The holder of a lease, or the waiter that has an offer (`offered`)."""

    token: str
    client: str
    holder: str
    fence: int
    ttl_ms: int
    since_us: int
    expires_us: int
    offered: bool


class Waiter(NamedTuple):
    """One place in the waiting line."""

    token: str
    client: str
    holder: str
    ttl_ms: int
    since_us: int


class Tombstone(NamedTuple):
    """A token that has ended. The engine refuses late commands with this token until the tombstone expires."""

    token: str
    until_us: int
    why: str
    detail: str = ""


class Line(Protocol):
    """The waiting line of a name: its waiters, in order."""

    @property
    def clients(self) -> Mapping[str, int]:
        """The clients that wait, with the number of waiters of each."""

    def first(self) -> Waiter | None:
        """Return the first waiter in line."""

    def find(self, token: str) -> Waiter | None:
        """Return the waiter with this token."""

    def place(self, token: str) -> int | None:
        """Return how many waiters are ahead of this token; `None` if it does not wait."""

    def joined(self, waiter: Waiter) -> Line:
        """Return the line with one more waiter at the end."""

    def without(self, token: str) -> Line:
        """Return the line without this waiter; the same line if the token does not wait."""

    def without_clients(self, dead: AbstractSet[str]) -> Line:
        """Return the line without every waiter of these clients."""

    def __iter__(self) -> Iterator[Waiter]: ...

    def __len__(self) -> int: ...


class Tombstones(Protocol):
    """The ended tokens of a name. `find` ignores an expired tombstone, although it may still be stored."""

    @property
    def ends_us(self) -> int:
        """When the last tombstone expires; 0 if there is none."""

    def find(self, token: str, now_us: int) -> Tombstone | None:
        """Return the tombstone of this token, if it has not expired."""

    def with_tombstone(self, tombstone: Tombstone, now_us: int) -> Tombstones:
        """Return the tombstones with this one added; it replaces an older one for the same token."""


class Waiters:
    """A waiting line that holds its waiters in memory."""

    __slots__ = ("_by_token", "clients")

    def __init__(self, by_token: dict[str, Waiter], clients: dict[str, int]) -> None:
        self._by_token = by_token
        self.clients = clients

    @classmethod
    def of(cls, waiters: Iterable[Waiter]) -> Waiters:
        by_token = {waiter.token: waiter for waiter in waiters}
        return cls(by_token, dict(Counter(waiter.client for waiter in by_token.values())))

    def first(self) -> Waiter | None:
        return next(iter(self._by_token.values()), None)

    def find(self, token: str) -> Waiter | None:
        return self._by_token.get(token)

    def place(self, token: str) -> int | None:
        return list(self._by_token).index(token) if token in self._by_token else None

    def joined(self, waiter: Waiter) -> Waiters:
        return Waiters({**self._by_token, waiter.token: waiter}, counted(self.clients, waiter.client, 1))

    def without(self, token: str) -> Waiters:
        waiter = self._by_token.get(token)
        if waiter is None:
            return self
        rest = self._by_token.copy()
        del rest[token]
        return Waiters(rest, counted(self.clients, waiter.client, -1))

    def without_clients(self, dead: AbstractSet[str]) -> Waiters:
        return Waiters.of(waiter for waiter in self if waiter.client not in dead)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._by_token.values())

    def __len__(self) -> int:
        return len(self._by_token)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Waiters) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Waiters({list(self)})"


class MemoryTombstones:
    """Tombstones in memory. A sweep removes expired ones whenever the number has doubled since the last sweep."""

    __slots__ = ("_by_token", "_sweep_at", "ends_us")

    def __init__(self, by_token: dict[str, Tombstone], ends_us: int, sweep_at: int = _SWEEP_MIN) -> None:
        self._by_token = by_token
        self._sweep_at = sweep_at
        self.ends_us = ends_us

    @classmethod
    def of(cls, tombstones: Iterable[Tombstone]) -> MemoryTombstones:
        by_token = {tombstone.token: tombstone for tombstone in tombstones}
        ends_us = max((tombstone.until_us for tombstone in by_token.values()), default=0)
        return cls(by_token, ends_us, max(_SWEEP_MIN, 2 * len(by_token)))

    def find(self, token: str, now_us: int) -> Tombstone | None:
        tombstone = self._by_token.get(token)
        return tombstone if tombstone is not None and tombstone.until_us > now_us else None

    def with_tombstone(self, tombstone: Tombstone, now_us: int) -> MemoryTombstones:
        by_token = {**self._by_token, tombstone.token: tombstone}
        if len(by_token) > self._sweep_at:
            return MemoryTombstones.of(other for other in by_token.values() if other.until_us > now_us)
        return MemoryTombstones(by_token, max(self.ends_us, tombstone.until_us), self._sweep_at)

    def __iter__(self) -> Iterator[Tombstone]:
        return iter(self._by_token.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryTombstones) and set(self) == set(other)

    def __hash__(self) -> int:
        return hash(frozenset(self))

    def __repr__(self) -> str:
        return f"MemoryTombstones({list(self)})"


NO_WAITERS = Waiters({}, {})
NO_TOMBSTONES = MemoryTombstones({}, 0)


class Record(NamedTuple):
    """The data that an engine stores about one name. `last`: the token that released the lease last."""

    fence: int = 0
    holder: HolderRecord | None = None
    waiters: Line = NO_WAITERS
    tombstones: Tombstones = NO_TOMBSTONES
    last: str = ""
    touched_us: int = 0


class Moment(NamedTuple):
    """The engine's knowledge at the moment of an answer: its clocks, the sender's client, and which clients are dead.

    `gone`: clients that are proven dead; their leases end at once. `silent`: clients without a recent heartbeat; their
    waiters leave the line, and their leases run to the end of the ttl. `doubtful`: clients that missed a heartbeat or
    let an offer lapse; their waiters keep their places, but other waiters come first. `None` on an engine that proves
    deaths.
    """

    now_us: int
    wall_us: int
    client: str
    gone: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    doubtful: frozenset[str] | None = None


def counted(clients: Mapping[str, int], client: str, more: int) -> dict[str, int]:
    """Return the counts after adding `more` to one client, without a client whose count is 0."""
    counts = dict(clients)
    counts[client] = counts.get(client, 0) + more
    if not counts[client]:
        del counts[client]
    return counts
