"""Names that are no lock: pools, semaphores and read-write locks, where people ask who holds what.

One name may be several of them at once, for each keeps its own records. What nobody has set up or uses is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.commands import POOL, RW, SEATS, Count, Counted
from holdfast.core.run import run
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.blocking import Holdfast

KINDS = {POOL: "pool", SEATS: "semaphore", RW: "read-write lock"}
COLUMNS = ("name", "kind", "taken", "of", "waiting")


class Many(NamedTuple):
    """One name under one roof, as the engine saw it just now."""

    name: str
    roof: str
    counted: Counted

    @property
    def kind(self) -> str:
        return KINDS[self.roof]

    @property
    def taken(self) -> bool:
        """Somebody has a part of it, or is about to."""
        return bool(self.counted.lent or self.counted.waiting)

    @property
    def of(self) -> int | None:
        """How many there are to have; of a read-write lock, as many as like to read."""
        return None if self.roof == RW else self.counted.size

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
    return _counted(hf, [(name, roof) for roof in KINDS])


def listed(hf: Holdfast, prefix: str, limit: int, *, every: bool) -> tuple[list[Many], bool]:
    """What is taken under names that begin so, or all there is; and whether there may be more of it. It scans."""
    found: list[Many] = []
    more = False
    for roof in KINDS:
        names, cut = hf._client.engine.names(prefix, limit, roof)
        found += (one for one in _counted(hf, [(name, roof) for name in names]) if every or one.taken)
        more = more or cut
    return sorted(found, key=lambda one: one.name)[:limit], more or len(found) > limit


def _counted(hf: Holdfast, wanted: Iterable[tuple[str, str]]) -> list[Many]:
    client = hf._client
    if "pools" not in client.engine.carries:
        return []
    wanted = tuple(wanted)
    answers = run(client.form.apply_all([Count(name, 0, roof) for name, roof in wanted]))
    found = []
    for (name, roof), answer in zip(wanted, answers, strict=True):
        if isinstance(answer, Unavailable):
            raise answer
        assert isinstance(answer, Counted)
        if answer.size or answer.lent or answer.cooling or answer.waiting:
            found.append(Many(name, roof, answer))
    return found
