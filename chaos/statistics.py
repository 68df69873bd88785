"""What a campaign has seen so far: sums, distributions, and the pictures' raw material.

The rule: a tally only counts. Nothing is left out, and nothing in it names the machine that it was counted on.
"""

from __future__ import annotations

import platform
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.checks import INVARIANTS, bounds_of
from chaos.known_limits import FORGETTING, KNOWN_LIMITS
from chaos.mutation_score import UNMODIFIED, MutantScore
from chaos.rounds import FACES, WORKLOADS
from chaos.schedule import KINDS
from holdfast.testing.hold_spans import hold_spans_by_name
from tests.support.fault_windows import MACHINE, STOPPED_IN_GATE, fault_windows
from tests.support.places import ENGINES
from tests.support.stale_work import find_stale_work
from tests.support.waiting_order import waits_by_name
from tests.support.wakeups import wake_ups_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.checks import Verdict
    from chaos.runner import RoundResult
    from chaos.selftest import MutantRun

MS = 1_000_000
MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Line:
    """A span of a timeline, in seconds of its round: a claim, or a fault."""

    worker: str
    start_s: float
    end_s: float
    kind: str = ""


@dataclass
class Timeline:
    """Who held when, and what struck whom: one round as a picture."""

    round: str
    seconds: float
    workers: tuple[str, ...]
    claims: list[Line]
    faults: list[Line]
    refused: list[Line]

    @property
    def to_see(self) -> int:
        return len({fault.kind for fault in self.faults}) + 3 * min(2, len(self.refused))


@dataclass
class Statistics:
    """The sums of a campaign."""

    seed: int
    wanted_minutes: float = 0.0
    seconds: float = 0.0
    rounds: Counter[str] = field(default_factory=Counter)
    grants: Counter[str] = field(default_factory=Counter)
    losses: int = 0
    writes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    not_run: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    shown: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    expected: Counter[str] = field(default_factory=Counter)
    wake_ups_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    waits_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    stale_work_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    told_late_ms: list[float] = field(default_factory=list)
    most_held: int = 0
    kills: list[MutantRun] = field(default_factory=list)
    scores: dict[str, MutantScore] = field(default_factory=dict)
    passed_unmodified: int = 0
    timelines: dict[str, Timeline] = field(default_factory=dict)

    def add(self, played: RoundResult, verdict: Verdict) -> None:
        """One round more."""
        round_, events = played.round, played.events
        where = f"{round_.engine}/{round_.face}"
        self.rounds[f"{round_.engine}/{round_.face}/{round_.workload}"] += 1
        self.faults.update(played.injected)
        self.not_run.update(played.not_run)
        self.expected.update(verdict.expected)
        for event in events:
            if event.kind == "granted":
                self.grants[where] += 1
            elif event.kind == "lost":
                self.losses += 1
            elif event.kind == "write":
                self.writes["accepted" if event.accepted else "refused"] += 1
            elif event.kind == "observed" and event.value:
                self.most_held = max(self.most_held, event.value)
            elif event.kind == "fault" and event.detail == MACHINE:
                self.faults[MACHINE] += 1
        self.wake_ups_ms[where] += [ns / MS for ns in wake_ups_ns(events, bounds_of(round_))]
        self.waits_ms[where] += _waits_ms(played)
        # A child of a process has a memory of its own: what it is granted there takes nothing from its parent.
        apart = ".child" if round_.engine == "memory" else "\n"
        for zombie in find_stale_work([event for event in events if not event.worker.endswith(apart)]):
            self.stale_work_ms[zombie.cause].append(zombie.length_ns / MS)
            if zombie.cause not in FORGETTING:
                self.told_late_ms.append(zombie.checked_ns / MS)
        self.add_violations(f"round {round_.name}", verdict)
        self._draw(played)

    def add_violations(self, where: str, verdict: Verdict) -> None:
        """Count every violation. Of each promise the first few are shown: ten thousand leases can be lost at once."""
        for promise, found in verdict.violations.items():
            self.violations[promise] += len(found)
            shown = self.shown[promise]
            shown += [f"seed {self.seed}, {where}\n{violation}" for violation in found[: MOST_SHOWN - len(shown)]]

    def _draw(self, played: RoundResult) -> None:
        """Of each engine the guarded round with the most to see: many kinds of faults, and a refused write."""
        if played.round.workload not in ("counter", "list") or not played.events:
            return
        line = timeline(played)
        drawn = self.timelines.get(played.round.engine)
        if drawn is None or line.to_see > drawn.to_see:
            self.timelines[played.round.engine] = line

    @property
    def holds(self) -> bool:
        """Nothing was broken, every broken client was caught in its own round, and the right one never accused."""
        innocent = UNMODIFIED not in self.scores or not self.scores[UNMODIFIED].caught
        return not self.violations and innocent and all(kill.killed or kill.not_run for kill in self.kills)

    @property
    def not_covered(self) -> list[str]:
        """Engines, faces and workloads of which no round was played, the larger part for the smaller ones."""
        missing = []
        for engine in ENGINES:
            for face in FACES:
                where = f"{engine}/{face}"
                played = [work for work in WORKLOADS if self.rounds[f"{where}/{work}"]]
                missing += [f"{where}/{work}" for work in WORKLOADS if work not in played] if played else [where]
        return missing

    def summary(self) -> dict[str, Any]:
        """The tally as plain values, for JSON."""
        return {
            "holds": self.holds,
            "seed": self.seed,
            "minutes": round(self.seconds / 60, 1),
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "rounds": {"total": self.rounds.total(), **dict(sorted(self.rounds.items()))},
            "not_covered": self.not_covered,
            "grants": {"total": self.grants.total(), **dict(sorted(self.grants.items()))},
            "losses": self.losses,
            "writes": dict(self.writes),
            "most_held_at_once": self.most_held,
            "faults": {name: self.faults[name] for name in [*KINDS, STOPPED_IN_GATE, MACHINE]},
            "not_run": dict(self.not_run),
            "violations": {promise: self.violations[promise] for promise in INVARIANTS},
            "violations_shown": {promise: list(found) for promise, found in self.shown.items()},
            "expected": {one.name: self.expected[one.name] for one in KNOWN_LIMITS},
            "wake_up_ms": {where: spread(values) for where, values in sorted(self.wake_ups_ms.items())},
            "wait_ms": {where: spread(values) for where, values in sorted(self.waits_ms.items())},
            "stale_work_ms": {cause: spread(values) for cause, values in sorted(self.stale_work_ms.items())},
            "largest_stale_work_ms": round(max((v for vs in self.stale_work_ms.values() for v in vs), default=0.0), 1),
            "largest_stale_work_with_checks_ms": round(max(self.told_late_ms, default=0.0), 1),
            "worst_wake_up_ms": round(max((v for vs in self.wake_ups_ms.values() for v in vs), default=0.0), 1),
            "mutants": [
                {
                    "name": kill.mutant.name,
                    "killed": kill.killed,
                    "by": list(kill.caught_by),
                    "seconds": round(kill.seconds, 1),
                    "rounds": kill.rounds,
                    "round": kill.mutant.round.name,
                    "not_run": kill.not_run,
                }
                for kill in self.kills
            ],
            "unmodified_client_passed": self.passed_unmodified,
            "mutants_in_ordinary_rounds": {
                name: {"played": share.played, "caught": share.caught, "by": dict(sorted(share.by.items()))}
                for name, share in self.scores.items()
            },
        }


def spread(values: Sequence[float]) -> dict[str, float]:
    """How many, the middle, the tail and the worst."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    return {"count": len(ordered), "p50": at(0.5), "p99": at(0.99), "worst": round(ordered[-1], 3)}


def timeline(played: RoundResult) -> Timeline:
    """A round as spans."""
    events = played.events
    zero_ns = min(event.at_ns for event in events)
    end_s = (max(event.at_ns for event in events) - zero_ns) / 1e9

    def second(ns: float) -> float:
        return min(max(0.0, (ns - zero_ns) / 1e9), end_s)

    claims = [
        Line(claim.opened.worker, second(claim.start_ns), second(claim.end_ns))
        for named in hold_spans_by_name(events).values()
        for claim in named
    ]
    faults = [
        Line(fault.target, second(fault.start_ns), second(fault.end_ns), fault.kind)
        for fault in fault_windows(events)
        if fault.kind in KINDS
    ]
    refused = [
        Line(event.worker, second(event.at_ns), second(event.at_ns))
        for event in events
        if event.kind == "write" and not event.accepted
    ]
    return Timeline(played.round.name, end_s, played.round.labels, claims, faults, refused)


def _waits_ms(played: RoundResult) -> list[float]:
    return [
        (wait.end_ns - wait.requested.at_ns) / MS
        for waits in waits_by_name(played.events).values()
        for wait in waits
        if wait.ended is not None and wait.ended.kind == "granted"
    ]
