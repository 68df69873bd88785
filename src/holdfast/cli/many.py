"""Names that are no lock: pools, semaphores and read-write locks, where people ask who holds what.

One name may be several of them at once, for each keeps its own records. What nobody has set up or uses is not there.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.commands import POOL, RWLOCK, SEMAPHORE, GetPoolStats, PoolSnapshot
from holdfast.core.step import run
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.blocking import Holdfast

KINDS = {POOL: "pool", SEMAPHORE: "semaphore", RWLOCK: "read-write lock"}
COLUMNS = ("name", "kind", "taken", "of", "waiting")


class Many(NamedTuple):
    """One name under one roof, as the engine saw it just now."""

    name: str
    pool_kind: str
    counted: PoolSnapshot

    @property
    def kind(self) -> str:
        return KINDS[self.pool_kind]

    @property
    def taken(self) -> bool:
        """Somebody has a part of it, or is about to."""
        return bool(self.counted.lent or self.counted.waiting)

    @property
    def of(self) -> int | None:
        """How many there are to have; of a read-write lock, as many as like to read."""
        return None if self.pool_kind == RWLOCK else self.counted.size

    def __str__(self) -> str:
        inside = f"{self.counted.lent} inside" if self.of is None else f"{self.counted.lent} of {self.of} taken"
        return f"a {self.kind}: {inside}, {self.counted.waiting} waiting"

    def row(self) -> tuple[object, ...]:
        counted = self.counted
        return (self.name, self.kind, counted.lent, "" if self.of is None else self.of, counted.waiting or "")

    def as_json(self) -> dict[str, Any]:
        counted = self.counted
        return {"name": self.name, "kind": self.kind, "taken": counted.lent, "of": self.of, "waiting": counted.waiting}


def of_name(hf: Holdfast, name: str) -> list[Many]:
    """What there is of this name."""
    return _counted(hf, [(name, pool_kind) for pool_kind in KINDS])


def listed(hf: Holdfast, prefix: str, limit: int, *, every: bool) -> tuple[list[Many], bool]:
    """What is taken under names that begin so, or all there is; and whether there may be more of it. It scans."""
    found: list[Many] = []
    more = False
    for pool_kind in KINDS:
        names, cut = hf._client.engine.names(prefix, limit, pool_kind)
        found += (one for one in _counted(hf, [(name, pool_kind) for name in names]) if every or one.taken)
        more = more or cut
    return sorted(found, key=lambda one: one.name)[:limit], more or len(found) > limit


class Survey:
    """The same, looked at again and again; it is scanned for as seldom as that takes its time."""

    def __init__(self, hf: Holdfast, prefix: str, *, limit: int, every: bool, share: int) -> None:
        self._hf = hf
        self._prefix = prefix
        self._limit = limit
        self._every = every
        self._share = share
        self._known: list[tuple[str, str]] = []
        self._again = 0.0
        self.more = False

    def look(self) -> list[Many]:
        began = time.monotonic()
        if began < self._again:
            return [one for one in _counted(self._hf, self._known) if self._every or one.taken]
        found, self.more = listed(self._hf, self._prefix, self._limit, every=self._every)
        self._known = [(one.name, one.pool_kind) for one in found]
        self._again = began + (time.monotonic() - began) * self._share
        return found


def _counted(hf: Holdfast, wanted: Iterable[tuple[str, str]]) -> list[Many]:
    client = hf._client
    if "pools" not in client.engine.capabilities:
        return []
    wanted = tuple(wanted)
    if not wanted:
        return []
    answers = run(client.transport.apply_all([GetPoolStats(name, 0, pool_kind) for name, pool_kind in wanted]))
    found = []
    for (name, pool_kind), answer in zip(wanted, answers, strict=True):
        if isinstance(answer, Unavailable):
            raise answer
        assert isinstance(answer, PoolSnapshot)
        if answer.size or answer.lent or answer.cooling or answer.waiting:
            found.append(Many(name, pool_kind, answer))
    return found
