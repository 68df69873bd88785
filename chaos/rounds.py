"""What a campaign plays, and in which order: rounds, drawn from a seed.

The rule: nothing here knows a clock or a machine. The same seed gives the same rounds, and each round knows all that
its schedule of faults is drawn from. So a round can be repeated alone, by its name.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from chaos.schedule import HOLDER, themes_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FACES = ("blocking", "asyncio")
_MIXED = 0.3
_WEIGHTS = {"stopped": 2, "harmless": 2, "silence": 3, "server": 2}
_BETWEEN_LARGE_S = (2.0, 4.0)  # ten thousand renewals take a second, and a cut in the middle begins them anew
_LEAVING = frozenset({"harmless", "deaths", "answers"})
_SEEN_S = 2.5  # a name that is left free for longer than `queues.Bounds.idle_s` shows in this time


@dataclass(frozen=True, slots=True)
class Workload:
    """What the workers do: what it shows, how long a lease lasts there, and how many workers there are.

    `longer` makes a round longer, where each lease is to be renewed several times in it. One that needs the whole
    machine is played `alone`.
    """

    name: str
    says: str
    ttl_s: float
    workers: int = 3
    guarded: bool = True
    weight: int = 1
    longer: float = 1.0
    alone: bool = False


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("counter", "a guarded counter; some sections last longer than the ttl", 1.0, weight=2),
        Workload("counter-unguarded", "the same, with a resource that compares no fences", 1.0, guarded=False),
        Workload("list", "a guarded list that everybody appends to", 1.0),
        Workload("list-unguarded", "the same, with a resource that compares no fences", 1.0, guarded=False),
        Workload("queue", "short sections, a fair queue, waiters that die in it", 2.0, workers=4, weight=2),
        Workload("leader", "candidates that lead in turn, and observers", 1.0, workers=4),
        Workload("mass", "thousands of leases held by one process", 6.0, workers=1, longer=2.4, alone=True),
    )
}


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a campaign.

    `kinds`, if given, are the only faults of its schedule; `ttl_s` and `lasts_s`, if given, take the place of the
    workload's ttl and of the faults' own lengths, and `aim` that of their aims. With `apart` no fault begins before the
    one before it is over. `long` is the share of sections that outlast the ttl. When the last fault is over, the
    workers go on for `calm_s`, with nothing broken.
    """

    seed: int
    engine: str
    face: str
    workload: str
    number: int = 1
    seconds: float = 8.0
    kinds: tuple[str, ...] = ()
    ttl_s: float = 0.0
    every_s: tuple[float, float] = (0.25, 0.9)
    lasts_s: tuple[float, float] | None = None
    long: float = 0.1
    aim: str = ""
    apart: bool = False
    calm_s: float = 0.8

    @property
    def name(self) -> str:
        return f"{self.engine}/{self.face}/{self.workload}/{self.number}"

    @property
    def work(self) -> Workload:
        return WORKLOADS[self.workload]

    @property
    def ttl(self) -> float:
        return self.ttl_s or self.work.ttl_s

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"w{number}" for number in range(self.work.workers))

    def rng(self, what: str) -> random.Random:
        """Dice for one purpose in this round; another purpose rolls others."""
        return random.Random(f"{self.seed}|{self.name}|{what}")


def plan(seed: int, engines: Sequence[str], workloads: Sequence[str] = (), seconds: float = 8.0) -> Iterator[Round]:
    """Rounds without end: every engine, face and workload in turn, in an order of the seed's own."""
    wanted = [WORKLOADS[name] for name in workloads or WORKLOADS]
    every = [
        (engine, face, workload.name)
        for engine in engines
        for face in FACES
        for workload in wanted
        for _ in range(workload.weight)
    ]
    rng = random.Random(seed)
    numbers: dict[tuple[str, str, str], Iterator[int]] = {}
    while True:
        rng.shuffle(every)
        for what in every:
            number = next(numbers.setdefault(what, count(1)))
            yield _ordinary(Round(seed, *what, number=number, seconds=seconds))


def named(seed: int, name: str, seconds: float = 8.0) -> Round:
    """The round of that name, to play it alone."""
    engine, face, workload, number = name.split("/")
    if workload not in WORKLOADS or face not in FACES:
        raise ValueError(f"no such round: {name!r}")
    return _ordinary(Round(seed, engine, face, workload, number=int(number), seconds=seconds))


def _ordinary(round_: Round) -> Round:
    """A round of a campaign: all faults mixed, or, in most, a theme: one fault after the other, and time to see.

    Where everything breaks at once, much is excused. The calm at the end is longer than any excuse but that of a dead
    waiter, so that what still stands still has none.
    """
    round_ = replace(round_, seconds=round_.seconds * round_.work.longer)
    if round_.work.alone:
        round_ = replace(round_, every_s=_BETWEEN_LARGE_S)
    rng = round_.rng("aim")
    if rng.random() < _MIXED:
        return replace(round_, calm_s=round_.ttl + _SEEN_S)
    themes = themes_for(round_.engine, round_.face, round_.workload)
    theme = rng.choice([name for name in themes for _ in range(_WEIGHTS.get(name, 1))])
    every_s = round_.every_s if round_.work.alone else (0.4, 1.0)
    facts: dict[str, Any] = {"kinds": themes[theme], "apart": True, "every_s": every_s, "long": 0.5}
    if theme in _LEAVING and not round_.work.alone:
        # What is left behind stands for a ttl: a long one is seen. Short sections, so that many wait and are served.
        facts |= {"ttl_s": _SEEN_S, "long": 0.1}
    if theme == "stopped":
        facts["aim"] = HOLDER
    return replace(round_, **facts, calm_s=facts.get("ttl_s", round_.ttl) + _SEEN_S)
