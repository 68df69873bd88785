"""The mutation score of ordinary rounds: in how many rounds that were not made for it a mutant is caught.

The rounds are those of the campaign, on the engines and faces that have the mistake, and any checker counts. The score
shows how many rounds without a violation are needed before they mean that there is no such mistake. The unmodified
client runs in the same rounds as a control: a checker that reports it, too, has caught no mutant.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from chaos.checks import check_round
from chaos.mutant_rounds import Mutant
from chaos.rounds import Round, plan
from chaos.runner import RoundRunner
from chaos.selftest import LiveCheck

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from chaos.checks import Verdict

UNMODIFIED = "the right client"
_AT_ONCE = 4
_ANYWHERE = ("memory", "blocking", "counter")


@dataclass(slots=True)
class MutationScore:
    """The score of one mutant: in how many rounds it ran and was caught, by which checkers, and in which rounds."""

    mutant: str
    rounds: int = 0
    caught: int = 0
    by: Counter[str] = field(default_factory=Counter)
    where: list[str] = field(default_factory=list)

    def add(self, round_: Round, verdict: Verdict) -> None:
        self.rounds += 1
        self.by.update(verdict.names())
        if not verdict.holds:
            self.caught += 1
            self.where.append(round_.name)


def rounds_for(mutant: Mutant, seed: int, engines: Sequence[str], count: int) -> list[Round]:
    """Return the first rounds of the campaign of this seed that have the mistake, without `alone` workloads."""
    suited = [engine for engine in mutant.engines if engine in engines]
    rounds = plan(seed, suited) if suited else iter(())
    return list(islice((one for one in rounds if one.face in mutant.faces and not one.work.alone), count))


def scores(
    mutants: Sequence[Mutant], seed: int, engines: Sequence[str], count: int, folder: Path
) -> Iterator[MutationScore]:
    """Yield the scores of the unmodified client and of every mutant; several rounds run at once: they mostly wait."""
    right = Mutant("", "", Round(seed, *_ANYWHERE))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        hunts = []
        for mutant in (right, *mutants):
            rounds = rounds_for(mutant, seed, engines, count)
            folders = [folder / f"{mutant.name or 'right'}-{number}" for number in range(len(rounds))]
            hunts.append((mutant, rounds, pool.map(met, [mutant.name] * len(rounds), rounds, folders)))
        for mutant, rounds, verdicts in hunts:
            score = MutationScore(mutant.name or UNMODIFIED)
            for round_, verdict in zip(rounds, verdicts, strict=True):
                score.add(round_, verdict)
            yield score


def met(mutation: str, round_: Round, folder: Path) -> Verdict:
    """Run a round with this client; end it with the first violation."""
    watch = LiveCheck(round_, lambda verdict: not verdict.holds)
    result = RoundRunner(round_, folder, mutation).run(watch)
    return check_round(result) if watch.verdict.holds else watch.verdict
