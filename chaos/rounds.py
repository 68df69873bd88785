"""The rounds of a campaign and their order, drawn from a seed.

Nothing here depends on a clock or a machine. The same seed gives the same rounds, and a round contains everything that
its schedule of faults is drawn from, so that one round can be repeated by its name.
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
_BETWEEN_LARGE_S = (2.0, 4.0)  # ten thousand renewals take a second, and a cut in the middle restarts them
_LEAVING = frozenset({"harmless", "deaths", "answers"})
_SEEN_S = 2.5  # long enough to see that a name was free for longer than `waiting_order.Bounds.idle_s`


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload: its description, the ttl of its leases, and the number of workers.

    `longer` makes a round longer, so that each lease is renewed several times. A workload that needs the whole machine
    runs `alone`.
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
        Workload("list", "a guarded list that all workers append to", 1.0),
        Workload("list-unguarded", "the same, with a resource that compares no fences", 1.0, guarded=False),
        Workload("queue", "short sections, a fair waiting line, waiters that die in it", 2.0, workers=4, weight=2),
        Workload("leader", "candidates that lead in turn, and observers", 1.0, workers=4),
        Workload("mass", "thousands of leases held by one process", 6.0, workers=1, longer=2.4, alone=True),
    )
}


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a campaign.

    `kinds`, if given, are the only faults of its schedule; `ttl_s`, `lasts_s` and `aim`, if given, replace the
    workload's ttl, the faults' lengths and their targets. With `apart`, no fault begins before the previous one is
    over.
    `long` is the share of sections that last longer than the ttl. When the last fault is over, the workers go on for
    `calm_s` without faults.
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
        """Return a random generator for one purpose in this round; another purpose has another one."""
        return random.Random(f"{self.seed}|{self.name}|{what}")


def plan(seed: int, engines: Sequence[str], workloads: Sequence[str] = (), seconds: float = 8.0) -> Iterator[Round]:
    """Yield rounds without end: every engine, face and workload in turn, in an order drawn from the seed."""
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
    """Return the round of that name, to run it alone."""
    engine, face, workload, number = name.split("/")
    if workload not in WORKLOADS or face not in FACES:
        raise ValueError(f"no such round: {name!r}")
    return _ordinary(Round(seed, engine, face, workload, number=int(number), seconds=seconds))


def _ordinary(round_: Round) -> Round:
    """Return a round of a campaign with all faults mixed or, in most rounds, with the faults of one theme in turn.

    Many faults at once excuse many delays. The calm at the end is longer than any excuse except a dead waiter, so that
    a name that is still free has none.
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
        # A lease that is left behind lasts for its ttl: a long ttl shows it. Sections are short, so that many wait.
        facts |= {"ttl_s": _SEEN_S, "long": 0.1}
    if theme == "stopped":
        facts["aim"] = HOLDER
    return replace(round_, **facts, calm_s=facts.get("ttl_s", round_.ttl) + _SEEN_S)
