"""Pools, semaphores and read-write locks: names with several holders at a time.

One name may be several of them at once, because each kind keeps its own records. A name without items, borrowers and
waiters does not exist.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.cli import output
from holdfast.commands import POOL, RWLOCK, SEMAPHORE, GetPoolStats, PoolSnapshot
from holdfast.core.step import run
from holdfast.engines import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from holdfast.blocking import Holdfast

KINDS = {POOL: "pool", SEMAPHORE: "semaphore", RWLOCK: "read-write lock"}
COLUMNS = ("name", "kind", "taken", "of", "waiting")


class PoolLike(NamedTuple):
    """One pool, semaphore or read-write lock as the engine sees it now."""

    name: str
    kind: str
    snapshot: PoolSnapshot

    @property
    def label(self) -> str:
        """The kind, for people."""
        return KINDS[self.kind]

    @property
    def taken(self) -> bool:
        """True if there is a holder or a waiter."""
        return bool(self.snapshot.lent or self.snapshot.waiting)

    @property
    def of(self) -> int | None:
        """The number of items or permits; `None` for a read-write lock, which has no maximum of readers."""
        return None if self.kind == RWLOCK else self.snapshot.size

    def __str__(self) -> str:
        lent = self.snapshot.lent
        taken = f"{lent} inside" if self.of is None else f"{lent} of {self.of} taken"
        return f"a {self.label}: {taken}, {self.snapshot.waiting} waiting"

    def row(self) -> tuple[object, ...]:
        """Return the cells of `COLUMNS`."""
        now = self.snapshot
        return (self.name, self.label, now.lent, "" if self.of is None else self.of, now.waiting or "")

    def as_json(self) -> dict[str, Any]:
        """Return the form for programs."""
        now = self.snapshot
        return {"name": self.name, "kind": self.label, "taken": now.lent, "of": self.of, "waiting": now.waiting}


def of_name(hf: Holdfast, name: str) -> list[PoolLike]:
    """Return the pool, the semaphore and the read-write lock of this name, as far as they exist."""
    return _snapshots(hf, [(name, kind) for kind in KINDS])


def listed(hf: Holdfast, prefix: str, limit: int, *, every: bool) -> tuple[list[PoolLike], bool]:
    """Scan for names that begin with the prefix; return them, and whether there may be more.

    `every`: also return those without a holder or waiter.
    """
    found: list[PoolLike] = []
    more = False
    for kind in KINDS:
        names, cut = hf._client.engine.names(prefix, limit, kind)
        found += (each for each in _snapshots(hf, [(name, kind) for name in names]) if every or each.taken)
        more = more or cut
    return sorted(found, key=lambda each: each.name)[:limit], more or len(found) > limit


class PoolLikeSurvey:
    """Queries the same names again and again, and scans for new names rarely, so that scans take a bounded time.

    `pause`: the pause after a scan, as a multiple of the scan's own time.
    """

    def __init__(self, hf: Holdfast, prefix: str, *, limit: int, every: bool, pause: int) -> None:
        self._hf = hf
        self._prefix = prefix
        self._limit = limit
        self._every = every
        self._pause = pause
        self._known: list[tuple[str, str]] = []
        self._next_scan = 0.0
        self.more = False

    def look(self) -> list[PoolLike]:
        """Return the names as they are now."""
        began = time.monotonic()
        if began < self._next_scan:
            return [each for each in _snapshots(self._hf, self._known) if self._every or each.taken]
        found, self.more = listed(self._hf, self._prefix, self._limit, every=self._every)
        self._known = [(each.name, each.kind) for each in found]
        self._next_scan = began + (time.monotonic() - began) * self._pause
        return found


def table(found: list[PoolLike]) -> RenderableType:
    """Return a table with one line each."""
    return output.table(COLUMNS, [each.row() for each in found], right=("taken", "of", "waiting"))


def _snapshots(hf: Holdfast, wanted: Iterable[tuple[str, str]]) -> list[PoolLike]:
    client = hf._client
    if Capability.POOLS not in client.engine.capabilities:
        return []
    wanted = tuple(wanted)
    if not wanted:
        return []
    answers = run(client.send_all([GetPoolStats(name, 0, kind) for name, kind in wanted]))
    found = []
    for (name, kind), answer in zip(wanted, answers, strict=True):
        if answer is None:
            continue
        assert isinstance(answer, PoolSnapshot)
        if answer.size or answer.lent or answer.cooling or answer.waiting:
            found.append(PoolLike(name, kind, answer))
    return found
