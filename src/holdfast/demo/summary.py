"""The summary of the demonstration: figures from the recorded history, and the result of its checkers.

The rule: every figure comes from the history, and every checker of `holdfast.testing` has read it. A violation comes
with the smallest part of the history that shows it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from holdfast.demo.narration import FREEZE, SCENARIO
from holdfast.demo.worker import LOCK
from holdfast.testing import check, lost_updates
from holdfast.testing.checkers import ALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.testing import HistoryEvent, Violation

_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run. Takeover times are the largest ones; `None` without a takeover."""

    engine: str
    ttl_s: float
    seconds: float
    events: int
    grants: int
    accepted: int
    refused: int
    lost: int
    killed: int
    frozen: int
    takeover_after_kill_ms: float | None
    takeover_after_freeze_ms: float | None
    counter: int
    checked: tuple[str, ...]
    violations: int
    report: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the summary for programs."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the summary for people."""
        after_kill = _shown_ms(self.takeover_after_kill_ms)
        after_freeze = _shown_ms(self.takeover_after_freeze_ms)
        rows = [
            (self.grants, "grants", "each under a higher fence"),
            (self.accepted, "writes accepted", f"the counter ended at {self.counter}"),
            (self.refused, "writes refused", "an old fence, refused by the guard"),
            (self.killed, "killed", f"taken over {after_kill} after the kill"),
            (self.frozen, "frozen", f"taken over {after_freeze} after the freeze (the ttl is {self.ttl_s:g} s)"),
            (self.lost, "leases lost", "reported to the holder: its block ended in LeaseLost"),
            (self.violations, "violations", f"found in {self.events} recorded events by {len(self.checked)} checkers"),
        ]
        plain = [
            f"  {count:>5}  {what:<16} {remark if count or what == 'violations' else ''}".rstrip()
            for count, what, remark in rows
        ]
        shown = [f"\n{each}" for each in self.report[:_MOST_SHOWN]]
        if len(self.report) > _MOST_SHOWN:
            shown.append(f"\n... and {len(self.report) - _MOST_SHOWN} more")
        return ["Summary of the recorded history", *plain, *shown]


def summarise(events: Sequence[HistoryEvent], counter: int, *, engine: str, ttl_s: float) -> Summary:
    """Return the figures and the violations of a history; `counter` is the last value of the counter."""
    writes = [event for event in events if event.kind == "write"]
    deaths = [event for event in events if event.kind == "died"]
    freezes = [event for event in events if event.kind == "fault" and (event.detail or "").startswith(FREEZE)]
    violations = violations_in(events, counter)
    return Summary(
        engine=engine,
        ttl_s=ttl_s,
        seconds=round((events[-1].at_ns - events[0].at_ns) / 1e9, 3) if events else 0.0,
        events=len(events),
        grants=_count(events, "granted"),
        accepted=sum(bool(write.accepted) for write in writes),
        refused=sum(not write.accepted for write in writes),
        lost=_count(events, "lost"),
        killed=len(deaths),
        frozen=len(freezes),
        takeover_after_kill_ms=_longest_takeover_ms(events, deaths),
        takeover_after_freeze_ms=_longest_takeover_ms(events, freezes),
        counter=counter,
        checked=tuple(checker.__name__ for checker in ALL),
        violations=len(violations),
        report=tuple(map(str, violations)),
    )


def violations_in(events: Sequence[HistoryEvent], counter: int) -> list[Violation]:
    """Return every violation in the history, including a wrong last value of the counter."""
    others = [checker for checker in ALL if checker is not lost_updates]
    found = [*check(events, *others), *lost_updates(events, {LOCK: counter})]
    # One of each kind first: the report shows only a few.
    first: dict[str, Violation] = {}
    for violation in found:
        first.setdefault(violation.checker, violation)
    return [*first.values(), *(each for each in found if first[each.checker] is not each)]


def _longest_takeover_ms(events: Sequence[HistoryEvent], ends: Sequence[HistoryEvent]) -> float | None:
    gaps = [_takeover_ns(events, end) for end in ends]
    known = [gap for gap in gaps if gap is not None]
    return round(max(known) / 1e6, 3) if known else None


def _takeover_ns(events: Sequence[HistoryEvent], end: HistoryEvent) -> int | None:
    gone = (end.detail or "").split()[-1] if end.worker == SCENARIO else end.worker
    after = (event for event in events if event.kind == "granted" and event.at_ns > end.at_ns)
    return next((event.at_ns - end.at_ns for event in after if event.worker != gone), None)


def _count(events: Sequence[HistoryEvent], kind: str) -> int:
    return sum(event.kind == kind for event in events)


def _shown_ms(ms: float | None) -> str:
    if ms is None:
        return "never"
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"
