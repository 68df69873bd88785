"""`python -m holdfast.testing.campaign`: plays a campaign, shows how it goes, and writes its report.

The exit code is 0 if every promise was kept and every broken client was caught, 1 if not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.testing import servers
from holdfast.testing.campaign import report, selftest
from holdfast.testing.campaign.rounds import FACES, WORKLOADS, named, plan
from holdfast.testing.campaign.runs import play
from holdfast.testing.campaign.tally import Tally
from holdfast.testing.places import ENGINES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.testing.campaign.rounds import Round


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    engines = options.engine or list(ENGINES)
    served = [engine for engine in engines if engine in ("redis", "sentinel", "cluster")]
    if served and not servers.available():
        if options.engine:
            _say(f"there is no server for {served[0]} on this machine")
            return 1
        engines = [engine for engine in engines if engine not in served]
    tally = Tally(options.seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-campaign-") as folder:
        if not options.only and not options.without_selftest:
            _test_itself(tally, engines, Path(folder))
        began = time.monotonic()
        rounds = (
            iter([named(options.seed, options.only, options.seconds)])
            if options.only
            else until(options.minutes * 60, plan(options.seed, engines, options.workload, options.seconds), engines)
        )
        for number, round_ in enumerate(rounds):
            _play(tally, round_, Path(folder) / str(number), began)
    tally.seconds = time.monotonic() - began
    if options.out is not None:
        report.write(tally, options.out)
        _say(f"the report is in {options.out / report.PAGE}")
    kept = f"every promise was kept in {tally.rounds.total()} rounds"
    _say(kept if tally.holds else "PROMISES WERE BROKEN, or a broken client was not caught")
    if tally.not_covered:
        _say(f"not covered: {', '.join(tally.not_covered)}")
    return 0 if tally.holds else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long to play, after the self-test")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same rounds and faults")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="may be given several times; all without")
    parser.add_argument("--workload", action="append", choices=tuple(WORKLOADS), default=None, help="the same")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long faults strike in one round")
    parser.add_argument("--only", metavar="ROUND", help="play this round alone, such as redis/asyncio/counter/3")
    parser.add_argument("--out", type=Path, help="the folder of the report; without it there is none")
    parser.add_argument("--without-selftest", action="store_true", help="do not play the broken clients first")
    return parser.parse_args(arguments)


def _test_itself(tally: Tally, engines: Sequence[str], folder: Path) -> None:
    """Broken clients first: a campaign that cannot catch them has nothing to say."""
    mutants = [mutant for mutant in selftest.bank(tally.seed).values() if mutant.round.engine in engines]
    _say(f"the self-test: {len(mutants)} broken clients")
    for kill in selftest.hunt_all(mutants, folder):
        tally.kills.append(kill)
        how = kill.not_run or (f"caught by {kill.mutant.caught_by}" if kill.killed else "NOT CAUGHT")
        _say(f"  {kill.mutant.name:30} {how} after {kill.seconds:.1f} s")
    rounds = selftest.rounds_of(mutants)
    _say(f"the right client in their {len(rounds)} rounds")
    for round_, verdict in selftest.acquit_all(rounds, folder):
        tally.acquitted += verdict.holds
        for promise, found in verdict.violations.items():
            for violation in found:
                tally.violations[promise].append(f"seed {tally.seed}, self-test in {round_}\n{violation}")
                _say(f"  {promise} {violation}")


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


def _play(tally: Tally, round_: Round, folder: Path, began: float) -> None:
    _show(f"{_clock(began)}  {round_.name} ...")
    before = tally.grants.total()
    played, verdict = play(round_, folder)
    tally.add(played, verdict)
    told = ", ".join(f"{kind} {count}" for kind, count in played.struck.most_common())
    expected = f"; expected: {', '.join(verdict.expected)}" if verdict.expected else ""
    _say(f"{_clock(began)}  {round_.name:34} {tally.grants.total() - before:6} grants; {told}{expected}")
    for promise, found in verdict.violations.items():
        _say(f"VIOLATION of {promise}: repeat with --seed {round_.seed} --only {round_.name}")
        for violation in found:
            _say(str(violation))


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
