"""Check the history of a round against all invariants.

Every violation counts, unless a limit of `known_limits` explains it; then it is counted under the name of the limit.
No violation is dropped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from chaos import known_limits
from chaos.workload import NAME
from holdfast.testing import checkers
from holdfast.testing.checkers import Violation
from tests.support import stale_work, waiting_order, wakeups
from tests.support.fault_windows import fault_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.rounds import Round
    from chaos.runner import RoundResult
    from holdfast.testing.history import HistoryEvent

    Checker = Callable[[Sequence[HistoryEvent]], list[Violation]]

# A holder stops trusting its lease a little before the ttl, and checks it between slices: it may record the loss later.
_SLACK_S = 0.5
_SHORTEST_S = 1.0

INVARIANTS = {
    "X0": "every worker ends, without an unknown error",
    "X1": "no two workers hold a name at one instant",
    "X2": "a holder that checks its lease before each step, or is cancelled on a loss, learns of the loss in time",
    "X3": "fences are unique and grow, for holders and observers",
    "X4": "a guarded resource never accepts an older fence after a newer one",
    "X5": "no acknowledged update or append is lost",
    "X7": "a name with waiters is not left free, its next holder is woken, and a holder that can renew keeps its lease",
    "X8": "no worker that came later is granted earlier",
    "X13": "nothing is left after a close: threads, descriptors, subscriptions, keys without expiry",
}


@dataclass
class Verdict:
    """The violations of a round by invariant, and the explained ones by limit."""

    violations: dict[str, list[Violation]] = field(default_factory=dict)
    expected: Counter[str] = field(default_factory=Counter)

    @property
    def holds(self) -> bool:
        return not self.violations

    def names(self) -> set[str]:
        """Return the checkers that found violations, as `X1 overlapping_holders`."""
        return {f"{promise} {one.checker}" for promise, found in self.violations.items() for one in found}

    def found_by(self, name: str) -> list[Violation]:
        """Return the violations that the checker of that name found."""
        promise, _, checker = name.partition(" ")
        return [one for one in self.violations.get(promise, ()) if one.checker == checker]


def bounds_of(round_: Round) -> waiting_order.Bounds:
    """Return how much time a fault may cost in this round."""
    return waiting_order.Bounds(ttl_s=round_.ttl, deaths_are_seen=round_.engine in ("sqlite", "file"))


def checkers_for(
    round_: Round, *, counter: int | None, appended: tuple[int, ...] | None, now_ns: int | None
) -> list[tuple[str, Checker]]:
    """Return the checkers of a round. Pass the final values at its end, or `now_ns` while it runs."""
    bounds = bounds_of(round_)
    final = None if counter is None else {NAME: counter}
    every: list[tuple[str, Checker]] = [
        ("X1", checkers.overlapping_holders),
        ("X2", stale_work.late_loss_reports),
        ("X3", checkers.fences_grow),
        ("X3", checkers.observers_see_fences_grow),
        ("X4", checkers.guarded_writes_never_go_down),
        ("X7", partial(waiting_order.idle_with_waiters, bounds=bounds, now_ns=now_ns)),
        ("X7", partial(wakeups.slow_wake_ups, bounds=bounds)),
        ("X7", partial(unexplained_losses, ttl_s=round_.ttl)),
        ("X8", partial(waiting_order.overtakes, bounds=bounds)),
        ("X13", checkers.leaks),
    ]
    if round_.workload.startswith("counter") or round_.workload == "leader":
        every.append(("X5", partial(checkers.lost_updates, final=final)))
    if round_.workload.startswith("list") and appended is not None:
        every.append(("X5", partial(checkers.lost_appends, final={NAME: appended})))
    if round_.workload == "mass":
        every.append(("X7", partial(losses, ttl_s=round_.ttl)))
    return every


def check_round(result: RoundResult) -> Verdict:
    """Check a round that is over."""
    round_ = result.round
    suite = checkers_for(round_, counter=result.counter, appended=result.appended, now_ns=None)
    verdict = check_events(round_, result.events, suite)
    for trouble in result.troubles:
        verdict.violations.setdefault("X0", []).append(Violation("worker_ended", trouble, ()))
    return verdict


def check_events(round_: Round, events: list[HistoryEvent], suite: list[tuple[str, Checker]]) -> Verdict:
    """Return the violations that these checkers find, without those that a known limit explains."""
    verdict = Verdict()
    for promise, checker in suite:
        for violation in checker(events):
            name = known_limits.explains(round_, promise, violation, events)
            if name is None:
                verdict.violations.setdefault(promise, []).append(violation)
            else:
                verdict.expected[name] += 1
    return verdict


def unexplained_losses(events: Sequence[HistoryEvent], ttl_s: float) -> list[Violation]:
    """Find lost leases of holders that no fault affected within the ttl before the loss: they could have renewed.

    A trusted lease was renewed at most a ttl ago; a fault that ended before that did not matter. A loss counts from the
    end of trust: the worker records it when it checks the lease, which may be later. A ttl of less than a second is not
    checked: a busy machine takes that long in stalls too short to be recorded.
    """
    if ttl_s < _SHORTEST_S:
        return []
    faults = [fault for fault in fault_windows(events) if not fault.harmless]
    return [
        Violation("unexplained_losses", f"{event.worker} lost {event.name!r}, and no fault had affected it", (event,))
        for event in events
        if event.kind == "lost"
        if not any(
            fault.affects(event.worker) and fault.overlaps(_lost_ns(event) - (ttl_s + _SLACK_S) * 1e9, _lost_ns(event))
            for fault in faults
        )
    ]


def _lost_ns(event: HistoryEvent) -> int:
    return event.at_ns if event.until_ns is None else min(event.at_ns, event.until_ns)


def losses(events: Sequence[HistoryEvent], ttl_s: float) -> list[Violation]:
    """Find lost leases although the faults left half of the ttl for a renewal."""
    faults = [fault for fault in fault_windows(events) if not fault.harmless]
    found = []
    for event in events:
        if event.kind == "lost":
            since_ns = event.at_ns - ttl_s * 1e9
            injected = [
                (max(f.start_ns, since_ns), min(f.end_ns, event.at_ns)) for f in faults if f.affects(event.worker)
            ]
            if (
                sum(end - start for start, end in waiting_order.merged([s for s in injected if s[0] < s[1]]))
                < ttl_s / 2 * 1e9
            ):
                found.append(Violation("losses", f"{event.worker} lost {event.name!r}: {event.detail}", (event,)))
    return found
