"""How often is a broken client caught in rounds that nobody made for it?

The rule: the rounds are those that the campaign itself plays, on the engines and faces where the mistake exists, and
the verdict is the one that a campaign would give: any checker counts. The share of rounds that catch a mistake says
how many rounds have to be silent before their silence means that there is no such mistake. The right client is played
like them, as a control: what accuses it, too, has caught nobody.
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
class MutantScore:
    """How one mutant fared: in how many rounds it was played and caught, by whom, and in which."""

    mutant: str
    played: int = 0
    caught: int = 0
    by: Counter[str] = field(default_factory=Counter)
    where: list[str] = field(default_factory=list)

    def add(self, round_: Round, verdict: Verdict) -> None:
        self.played += 1
        self.by.update(verdict.names())
        if not verdict.holds:
            self.caught += 1
            self.where.append(round_.name)


def rounds_for(mutant: Mutant, seed: int, engines: Sequence[str], count: int) -> list[Round]:
    """The first rounds of the campaign of this seed in which the mistake exists; none that needs the machine alone."""
    suited = [engine for engine in mutant.engines if engine in engines]
    rounds = plan(seed, suited) if suited else iter(())
    return list(islice((one for one in rounds if one.face in mutant.faces and not one.work.alone), count))


def scores(
    mutants: Sequence[Mutant], seed: int, engines: Sequence[str], count: int, folder: Path
) -> Iterator[MutantScore]:
    """The right client, then every mutant, in that many ordinary rounds each; several at once, for they mostly wait."""
    right = Mutant("", "", Round(seed, *_ANYWHERE))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        hunts = []
        for mutant in (right, *mutants):
            rounds = rounds_for(mutant, seed, engines, count)
            folders = [folder / f"{mutant.name or 'right'}-{number}" for number in range(len(rounds))]
            hunts.append((mutant, rounds, pool.map(met, [mutant.name] * len(rounds), rounds, folders)))
        for mutant, rounds, verdicts in hunts:
            share = MutantScore(mutant.name or UNMODIFIED)
            for round_, verdict in zip(rounds, verdicts, strict=True):
                share.add(round_, verdict)
            yield share


def met(mutation: str, round_: Round, folder: Path) -> Verdict:
    """A round with this client; it ends as soon as anybody accuses."""
    watch = LiveCheck(round_, lambda verdict: not verdict.holds)
    played = RoundRunner(round_, folder, mutation).play(watch)
    return check_round(played) if watch.verdict.holds else watch.verdict
