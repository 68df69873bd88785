"""The campaign tests itself first: each broken client is caught by the checker that is named for it.

The rule: a mutant is caught when the checker of its own promise accuses it, in a round of the campaign with faults
that bring its mistake to light. The right client is played in the same rounds, and every checker must be content.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.testing import wallclock
from holdfast.testing.campaign.judge import Verdict, checkers_for, judge, judge_events
from holdfast.testing.campaign.mutants import MUTATIONS
from holdfast.testing.campaign.rounds import Round
from holdfast.testing.campaign.runs import play_all
from holdfast.testing.campaign.schedule import HOLDER, KINDS, WAITER
from holdfast.testing.campaign.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from holdfast.testing.history import Event

LONGEST_S = 45.0
_RIGHT_S = 3.0
_CHANCES = 3
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken client: the mistake, who catches it, and the round in which it shows."""

    name: str
    caught_by: str
    round: Round
    ends: bool = False

    @property
    def runs(self) -> bool:
        """Whether this machine can play its round."""
        return wallclock.available() or not any(KINDS[kind].clock for kind in self.round.kinds)


@dataclass(frozen=True, slots=True)
class Kill:
    """What became of a mutant: caught by whom, after how many seconds; or why it was not played."""

    mutant: Mutant
    caught_by: tuple[str, ...]
    seconds: float
    shown: str = ""
    not_run: str = ""

    @property
    def killed(self) -> bool:
        return self.mutant.caught_by in self.caught_by


def _mutants(seed: int) -> tuple[Mutant, ...]:
    def at(engine: str, face: str, workload: str, *kinds: str, **more: object) -> Round:
        facts = {"ttl_s": 0.6, "every_s": (0.4, 1.0), "long": 0.5, **more}
        return Round(seed, engine, face, workload, seconds=LONGEST_S, kinds=kinds, **facts)  # type: ignore[arg-type]

    freezing = at("sqlite", "blocking", "counter", "freeze", aim=HOLDER)
    overlap, told, fences = "X1 claimed_overlaps", "X2 late_losses", "X3 fences_grow"
    waited = "X7 idle_while_awaited"
    return (
        Mutant("release-without-token-check", overlap, freezing),
        Mutant("script-releases-whatever", overlap, at("redis", "blocking", "counter", "freeze", aim=HOLDER)),
        Mutant("unlock-by-name", overlap, at("redis", "blocking", "counter", "freeze", aim=HOLDER)),
        Mutant("renew-after-loss", overlap, freezing),
        Mutant("recreate-on-renew", overlap, at("sqlite", "asyncio", "counter", "freeze", aim=HOLDER)),
        Mutant("child-keeps-the-lease", overlap, at("sqlite", "blocking", "counter", "fork")),
        Mutant("fails-open", overlap, at("redis", "asyncio", "counter", "restart", lasts_s=(0.5, 1.0), long=0.6)),
        Mutant("client-clock", overlap, at("sqlite", "blocking", "counter", "client clock")),
        Mutant(
            "ttl-not-restarted-on-resend",
            overlap,
            at(
                "redis",
                "blocking",
                "counter",
                "slow re-send",
                ttl_s=1.0,
                long=0.8,
                lasts_s=(6.0, 6.0),
                every_s=(9.0, 9.0),
            ),
        ),
        Mutant(
            "ttl-counted-from-the-answer",
            overlap,
            at(
                "redis",
                "blocking",
                "counter",
                "slow server",
                "freeze",
                lasts_s=(0.9, 1.4),
                every_s=(0.2, 0.5),
                aim=HOLDER,
            ),
        ),
        Mutant("never-renews", "X7 unexplained_losses", at("sqlite", "blocking", "counter", "fork", long=0.8)),
        Mutant("loss-not-told", told, freezing),
        Mutant("cancels-nobody", told, at("sqlite", "asyncio", "counter", "freeze", long=0.9, aim=HOLDER)),
        Mutant("fence-apart-from-grant", fences, at("sqlite", "blocking", "counter", "freeze", long=0.0)),
        Mutant("fence-kept-on-takeover", fences, freezing),
        Mutant("guard-compares-nothing", "X4 guarded_writes_never_go_down", freezing),
        Mutant(
            "guard-not-told-of-readers",
            "X5 lost_updates",
            at("sqlite", "blocking", "counter", "freeze", long=1.0, aim=HOLDER),
        ),
        Mutant("blind-retry", waited, at("redis", "asyncio", "queue", "lost reply", ttl_s=20.0, aim=WAITER)),
        Mutant("hand-off-to-the-dead", waited, at("sqlite", "blocking", "queue", "kill", ttl_s=20.0, aim=WAITER)),
        Mutant(
            "no-timer-beside-the-wake-up",
            waited,
            at("sqlite", "blocking", "counter", "freeze", lasts_s=(7.0, 8.0), every_s=(9.0, 9.0), aim=HOLDER),
        ),
        Mutant("nobody-is-woken", waited, at("memory", "blocking", "queue", "fork", ttl_s=2.0)),
        Mutant("cancel-without-undo", waited, at("redis", "asyncio", "queue", "cancellation storm", ttl_s=20.0)),
        Mutant("barging", "X8 overtakes", at("sqlite", "blocking", "queue", "fork")),
        Mutant("close-leaves-the-keeper", "X13 leftovers", at("memory", "blocking", "queue", "fork"), ends=True),
    )


def bank(seed: int) -> dict[str, Mutant]:
    """Every broken client, by name."""
    return {mutant.name: mutant for mutant in _mutants(seed)}


def hunt(mutant: Mutant, folder: Path) -> Kill:
    """Play a mutant until it is caught, for a few rounds if need be: many a mistake shows by chance only."""
    if not mutant.runs:
        return Kill(mutant, (), 0.0, not_run="no C compiler")
    for chance in range(_CHANCES):
        again = replace(mutant, round=replace(mutant.round, seed=mutant.round.seed + 100 * chance))
        kill = _hunt_once(again, folder / str(chance))
        if kill.killed:
            break
    return kill


def _hunt_once(mutant: Mutant, folder: Path) -> Kill:
    """One round of it, or less if it is caught before."""
    found: list[Verdict] = []
    began = time.monotonic()

    def caught(events: list[Event]) -> bool:
        suite = checkers_for(mutant.round, counter=None, appended=None, now_ns=time.monotonic_ns())
        found[:] = [judge_events(mutant.round, events, suite)]
        return mutant.caught_by in found[0].names()

    if mutant.ends:
        found.append(judge(Stage(replace(mutant.round, seconds=1.0), folder, mutant.name).play()))
    else:
        Stage(mutant.round, folder, mutant.name, ends=False).play(caught)
    verdict = found[0]
    wanted = mutant.caught_by.split()[0]
    shown = next((str(one) for one in verdict.violations.get(wanted, ())), "")
    return Kill(mutant, tuple(sorted(verdict.names())), time.monotonic() - began, shown)


def hunt_all(mutants: Sequence[Mutant], folder: Path) -> Iterator[Kill]:
    """Several at once, for they mostly wait; each is told as soon as those before it are."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(lambda mutant: hunt(mutant, folder / mutant.name), mutants)


def rounds_of(mutants: Sequence[Mutant]) -> list[Round]:
    """The rounds in which the right client has to pass: those of the mutants, each once, and shorter."""
    return list(dict.fromkeys(replace(mutant.round, seconds=_RIGHT_S) for mutant in mutants if mutant.runs))


def acquit_all(rounds: Sequence[Round], folder: Path) -> list[tuple[Round, Verdict]]:
    """The right client in these rounds."""
    return [(played.round, verdict) for played, verdict in play_all(rounds, folder, _AT_ONCE)]


assert set(bank(0)) == set(MUTATIONS), "each mutation has its checker"
