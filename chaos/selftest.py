"""The self-test of the campaign: the named checker catches each mutant.

A mutant is caught when the checker of its own invariant reports it, in a round with faults that show its mistake. The
unmodified client runs in the same rounds, and no checker may report it.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chaos.checks import Verdict, check_events, check_round, checkers_for
from chaos.runner import RoundRunner
from chaos.runs import run_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from chaos.mutant_rounds import Mutant
    from chaos.rounds import Round
    from holdfast.testing.history import HistoryEvent

_RIGHT_S = 3.0
_CHANCES = 3
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class MutantRun:
    """The result of a mutant: the checkers that caught it, the seconds and rounds; or why it was not run."""

    mutant: Mutant
    caught_by: tuple[str, ...] = ()
    seconds: float = 0.0
    rounds: int = 0
    shown: str = ""
    not_run: str = ""

    @property
    def killed(self) -> bool:
        return self.mutant.caught_by in self.caught_by


def hunt(mutant: Mutant, folder: Path) -> MutantRun:
    """Run a mutant until it is caught, for at most a few rounds: many mistakes show by chance only."""
    if not mutant.runs:
        return MutantRun(mutant, not_run="no C compiler")
    began = time.monotonic()
    for chance in range(_CHANCES):
        round_ = replace(mutant.round, seed=mutant.round.seed + 100 * chance)
        verdict = _met(mutant, round_, folder / str(chance))
        if mutant.caught_by in verdict.names():
            break
    shown = "".join(str(one) for one in verdict.found_by(mutant.caught_by)[:1])
    return MutantRun(mutant, tuple(sorted(verdict.names())), time.monotonic() - began, chance + 1, shown)


def _met(mutant: Mutant, round_: Round, folder: Path) -> Verdict:
    """Run one round of a mutant, or less if it is caught before."""
    if mutant.ends:
        return check_round(RoundRunner(replace(round_, seconds=1.0), folder, mutant.name).run())
    watch = LiveCheck(round_, lambda verdict: mutant.caught_by in verdict.names())
    RoundRunner(round_, folder, mutant.name, ends=False).run(watch)
    return watch.verdict


class LiveCheck:
    """Checks a round while it runs, and ends it once `is_enough` accepts the verdict."""

    def __init__(self, round_: Round, is_enough: Callable[[Verdict], bool]) -> None:
        self._round = round_
        self._is_enough = is_enough
        self.verdict = Verdict()

    def __call__(self, events: list[HistoryEvent]) -> bool:
        suite = checkers_for(self._round, counter=None, appended=None, now_ns=time.monotonic_ns())
        self.verdict = check_events(self._round, events, suite)
        return self._is_enough(self.verdict)


def run_mutants(mutants: Sequence[Mutant], folder: Path) -> Iterator[MutantRun]:
    """Run several mutants at once, because they mostly wait; yield the results in order."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(lambda mutant: hunt(mutant, folder / mutant.name), mutants)


def rounds_of(mutants: Sequence[Mutant]) -> list[Round]:
    """Return the rounds that the unmodified client has to pass: those of the mutants, each once, and shorter."""
    return list(dict.fromkeys(replace(mutant.round, seconds=_RIGHT_S) for mutant in mutants if mutant.runs))


def run_unmodified(rounds: Sequence[Round], folder: Path) -> list[tuple[Round, Verdict]]:
    """Run the unmodified client in these rounds."""
    return [(result.round, verdict) for result, verdict in run_rounds(rounds, folder, _AT_ONCE)]
