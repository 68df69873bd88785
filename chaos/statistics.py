"""The statistics of a campaign: sums, distributions, and the data of the plots.

Statistics only count. They leave out nothing, and name no machine.
"""

from __future__ import annotations

import platform
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.checks import INVARIANTS, bounds_of
from chaos.known_limits import FORGETTING, KNOWN_LIMITS
from chaos.mutation_score import UNMODIFIED, MutationScore
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
class Span:
    """A span of a timeline, in seconds of its round: a held lease, or a fault."""

    worker: str
    start_s: float
    end_s: float
    kind: str = ""


@dataclass
class Timeline:
    """The holders and faults of one round, for a plot."""

    round: str
    seconds: float
    workers: tuple[str, ...]
    claims: list[Span]
    faults: list[Span]
    refused: list[Span]

    @property
    def interest(self) -> int:
        return len({fault.kind for fault in self.faults}) + 3 * min(2, len(self.refused))


@dataclass
class Statistics:
    """The statistics of a campaign."""

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
    checked_stale_ms: list[float] = field(default_factory=list)
    most_held: int = 0
    kills: list[MutantRun] = field(default_factory=list)
    scores: dict[str, MutationScore] = field(default_factory=dict)
    passed_unmodified: int = 0
    timelines: dict[str, Timeline] = field(default_factory=dict)

    def add(self, result: RoundResult, verdict: Verdict) -> None:
        """Add one round."""
        round_, events = result.round, result.events
        where = f"{round_.engine}/{round_.face}"
        self.rounds[f"{round_.engine}/{round_.face}/{round_.workload}"] += 1
        self.faults.update(result.injected)
        self.not_run.update(result.not_run)
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
        self.waits_ms[where] += _waits_ms(result)
        # A forked child has its own memory: a grant there takes nothing from its parent.
        apart = ".child" if round_.engine == "memory" else "\n"
        for zombie in find_stale_work([event for event in events if not event.worker.endswith(apart)]):
            self.stale_work_ms[zombie.cause].append(zombie.length_ns / MS)
            if zombie.cause not in FORGETTING:
                self.checked_stale_ms.append(zombie.checked_ns / MS)
        self.add_violations(f"round {round_.name}", verdict)
        self._draw(result)

    def add_violations(self, where: str, verdict: Verdict) -> None:
        """Count every violation, and keep the first few of each invariant: ten thousand leases can be lost at once."""
        for promise, found in verdict.violations.items():
            self.violations[promise] += len(found)
            shown = self.shown[promise]
            shown += [f"seed {self.seed}, {where}\n{violation}" for violation in found[: MOST_SHOWN - len(shown)]]

    def _draw(self, result: RoundResult) -> None:
        """Keep the timeline of the most interesting guarded round of each engine: many faults, and a refused write."""
        if result.round.workload not in ("counter", "list") or not result.events:
            return
        line = timeline(result)
        drawn = self.timelines.get(result.round.engine)
        if drawn is None or line.interest > drawn.interest:
            self.timelines[result.round.engine] = line

    @property
    def holds(self) -> bool:
        """True if every invariant held, every mutant was caught in its round, and the unmodified client never was."""
        clean = UNMODIFIED not in self.scores or not self.scores[UNMODIFIED].caught
        return not self.violations and clean and all(kill.killed or kill.not_run for kill in self.kills)

    @property
    def not_covered(self) -> list[str]:
        """The engines, faces and workloads without a round; a face without any round is listed as a whole."""
        missing = []
        for engine in ENGINES:
            for face in FACES:
                where = f"{engine}/{face}"
                played = [work for work in WORKLOADS if self.rounds[f"{where}/{work}"]]
                missing += [f"{where}/{work}" for work in WORKLOADS if work not in played] if played else [where]
        return missing

    def summary(self) -> dict[str, Any]:
        """Return the statistics as plain values, for JSON."""
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
            "largest_stale_work_with_checks_ms": round(max(self.checked_stale_ms, default=0.0), 1),
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
                name: {"rounds": score.rounds, "caught": score.caught, "by": dict(sorted(score.by.items()))}
                for name, score in self.scores.items()
            },
        }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return count, median, 99th percentile and maximum."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    return {"count": len(ordered), "p50": at(0.5), "p99": at(0.99), "worst": round(ordered[-1], 3)}


def timeline(result: RoundResult) -> Timeline:
    """Return a round as spans."""
    events = result.events
    zero_ns = min(event.at_ns for event in events)
    end_s = (max(event.at_ns for event in events) - zero_ns) / 1e9

    def second(ns: float) -> float:
        return min(max(0.0, (ns - zero_ns) / 1e9), end_s)

    claims = [
        Span(claim.opened.worker, second(claim.start_ns), second(claim.end_ns))
        for named in hold_spans_by_name(events).values()
        for claim in named
    ]
    faults = [
        Span(fault.target, second(fault.start_ns), second(fault.end_ns), fault.kind)
        for fault in fault_windows(events)
        if fault.kind in KINDS
    ]
    refused = [
        Span(event.worker, second(event.at_ns), second(event.at_ns))
        for event in events
        if event.kind == "write" and not event.accepted
    ]
    return Timeline(result.round.name, end_s, result.round.labels, claims, faults, refused)


def _waits_ms(result: RoundResult) -> list[float]:
    return [
        (wait.end_ns - wait.requested.at_ns) / MS
        for waits in waits_by_name(result.events).values()
        for wait in waits
        if wait.ended is not None and wait.ended.kind == "granted"
    ]
