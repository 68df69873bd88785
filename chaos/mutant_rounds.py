"""The mutants: the checker that catches each, the engines and faces that have its mistake, and the round that shows it.

Every mutation has one line here, and every invariant has a mutation that breaks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chaos.mutants import MUTATIONS
from chaos.rounds import FACES, Round
from chaos.schedule import HOLDER, KINDS, WAITER
from tests.support import wallclock
from tests.support.places import ENGINES

LONGEST_S = 45.0

_RULES, _SCRIPTS = ("memory", "sqlite"), ("redis",)
_OVERLAP, _TOLD, _FENCES = "X1 overlapping_holders", "X2 late_loss_reports", "X3 fences_grow"
_IDLE = "X7 idle_with_waiters"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutant: its mistake, the checker that catches it, and the round that shows it.

    `engines` and `faces` are those that have the mistake at all. A mutant that `ends` is checked when its round is
    over.
    """

    name: str
    caught_by: str
    round: Round
    engines: tuple[str, ...] = ENGINES
    faces: tuple[str, ...] = FACES
    ends: bool = False

    @property
    def runs(self) -> bool:
        """True if this machine can run its round."""
        return wallclock.available() or not any(KINDS[kind].clock for kind in self.round.kinds)


def mutants_by_name(seed: int) -> dict[str, Mutant]:
    """Return every mutant, by name."""
    every = (*_two_holders(seed), *_not_told(seed), *_wrong_numbers(seed), *_waiting(seed), *_order(seed))
    return {mutant.name: mutant for mutant in every}


def _at(seed: int, engine: str, face: str, workload: str, *kinds: str, **more: object) -> Round:
    facts = {"ttl_s": 0.6, "every_s": (0.4, 1.0), "long": 0.5, **more}
    return Round(seed, engine, face, workload, seconds=LONGEST_S, kinds=kinds, **facts)  # type: ignore[arg-type]


def _freezing(seed: int, engine: str = "sqlite", face: str = "blocking", **more: object) -> Round:
    return _at(seed, engine, face, "counter", "freeze", aim=HOLDER, **more)


def _two_holders(seed: int) -> tuple[Mutant, ...]:
    late = {"ttl_s": 1.0, "long": 0.8, "lasts_s": (6.0, 6.0), "every_s": (9.0, 9.0)}
    resend = _at(seed, "redis", "blocking", "counter", "slow re-send", **late)
    answers = _at(
        seed, "redis", "blocking", "counter", "late answer", **late | {"lasts_s": (3.0, 3.0), "every_s": (4.8, 5.0)}
    )
    away = _at(seed, "redis", "asyncio", "counter", "restart", lasts_s=(0.5, 1.0), long=0.6)
    return (
        Mutant("release-without-token-check", _OVERLAP, _freezing(seed), _RULES),
        Mutant("script-release-ignores-token", _OVERLAP, _freezing(seed, "redis"), _SCRIPTS),
        Mutant("unlock-by-name", _OVERLAP, _freezing(seed, "redis")),
        Mutant("renew-after-loss", _OVERLAP, _freezing(seed)),
        Mutant("recreate-on-renew", _OVERLAP, _freezing(seed, face="asyncio"), _RULES),
        Mutant("script-revives-on-renew", _OVERLAP, _freezing(seed, "redis"), _SCRIPTS),
        Mutant("script-renew-changes-nothing", _OVERLAP, _at(seed, "redis", "blocking", "counter", "fork"), _SCRIPTS),
        Mutant("child-keeps-the-lease", _OVERLAP, _at(seed, "sqlite", "blocking", "counter", "fork")),
        Mutant("fails-open", _OVERLAP, away, ("redis",)),
        Mutant("client-clock", _OVERLAP, _at(seed, "sqlite", "blocking", "counter", "client clock"), _RULES),
        Mutant("ttl-not-restarted-on-resend", _OVERLAP, resend, ("redis",)),
        Mutant("script-keeps-the-ttl-on-resend", _OVERLAP, resend, _SCRIPTS),
        Mutant("ttl-counted-from-the-answer", _OVERLAP, answers),
    )


def _not_told(seed: int) -> tuple[Mutant, ...]:
    # A worker that wakes up still has much work to do.
    asleep: dict[str, Any] = {"ttl_s": 1.0, "long": 1.0, "lasts_s": (1.1, 1.4)}
    return (
        Mutant("loss-not-reported", _TOLD, _freezing(seed, **asleep)),
        Mutant("cancel-policy-ignored", _TOLD, _freezing(seed, face="asyncio", **asleep), faces=("asyncio",)),
        Mutant(
            "never-renews",
            "X7 unexplained_losses",
            _at(seed, "sqlite", "blocking", "counter", "fork", ttl_s=1.0, long=0.8),
        ),
    )


def _wrong_numbers(seed: int) -> tuple[Mutant, ...]:
    # The worker wakes up and writes while its successor, which has just read, still works.
    between: dict[str, Any] = {"long": 1.0, "lasts_s": (0.7, 0.85), "every_s": (1.2, 1.6)}
    apart = _at(seed, "sqlite", "blocking", "counter", "freeze", long=0.0)
    return (
        Mutant("fence-apart-from-grant", _FENCES, apart),
        Mutant("fence-kept-on-takeover", _FENCES, _freezing(seed), _RULES),
        Mutant("guard-compares-nothing", "X4 guarded_writes_never_go_down", _freezing(seed)),
        Mutant("guard-ignores-reads", "X5 lost_updates", _freezing(seed, **between)),
    )


def _waiting(seed: int) -> tuple[Mutant, ...]:
    calling = _at(seed, "sqlite", "blocking", "queue", "kill", ttl_s=20.0, aim=WAITER)
    unheard = _at(seed, "redis", "asyncio", "queue", "lost reply", ttl_s=20.0, aim=WAITER)
    storm = _at(seed, "redis", "asyncio", "queue", "cancellation storm", ttl_s=20.0)
    in_peace = _at(seed, "memory", "blocking", "queue", "fork", ttl_s=2.0)
    return (
        Mutant("blind-retry", _IDLE, unheard, ("redis",)),
        Mutant("offer-to-a-dead-waiter", _IDLE, calling, ("sqlite",)),
        Mutant("no-recheck-timer", _IDLE, _freezing(seed, lasts_s=(7.0, 8.0), every_s=(9.0, 9.0))),
        Mutant("no-wake-up", _IDLE, in_peace, _RULES),
        Mutant("polls-instead-of-waking", "X7 slow_wake_ups", in_peace, _RULES),
        # A thread's timeout ends in the library itself; only tasks are cancelled.
        Mutant("cancel-without-undo", _IDLE, storm, faces=("asyncio",)),
    )


def _order(seed: int) -> tuple[Mutant, ...]:
    fork = _at(seed, "sqlite", "blocking", "queue", "fork")
    last_first = _at(seed, "redis", "asyncio", "queue", "fork")
    closing = _at(seed, "memory", "blocking", "queue", "fork")
    return (
        Mutant("barging", "X8 overtakes", fork, _RULES),
        Mutant("script-serves-last-in-first-out", "X8 overtakes", last_first, _SCRIPTS),
        Mutant("close-leaves-the-keeper", "X13 leaks", closing, ends=True),
    )


assert set(mutants_by_name(0)) == set(MUTATIONS), "each mutation has its checker"
