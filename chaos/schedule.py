"""Which faults strike when: a schedule, drawn from the seed of a round.

The rule: a pure function. It does not look at the machine, so that the same round has the same schedule everywhere;
what a machine cannot do is counted as not run. No worker and no server is struck twice at a time, and no round loses
both the server's data and its clock: no engine promises anything then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from chaos.rounds import Round

HOLDER, WAITER, SERVER = "holder", "waiter", "server"


@dataclass(frozen=True, slots=True)
class Fault:
    """At which second of the round, what, whom, and for how long. `amount` is a delay or an offset, in seconds."""

    at_s: float
    kind: str
    target: str
    lasts_s: float
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault: where it makes sense, how long it lasts (in ttls, or in seconds), and whom it aims at."""

    name: str
    says: str
    engines: tuple[str, ...] = ("memory", "sqlite", "file", "redis", "sentinel", "cluster")
    faces: tuple[str, ...] = ("blocking", "asyncio")
    server: bool = False
    ttls: tuple[float, float] = (0.0, 0.0)
    seconds: tuple[float, float] = (0.0, 0.0)
    amounts: tuple[float, ...] = ()
    clock: bool = False
    aim: str = ""


_SERVER = ("redis",)
_GROUP = ("sentinel", "cluster")
KINDS = {
    kind.name: kind
    for kind in (
        Kind("kill", "SIGKILL of a worker; another takes its place", engines=("sqlite", "file", "redis", *_GROUP)),
        Kind("freeze", "SIGSTOP of a worker, past its ttl", ttls=(1.2, 2.0)),
        Kind("long freeze", "the same, for several ttls", engines=("sqlite", "redis"), ttls=(3.7, 4.3), aim=HOLDER),
        Kind("gil stall", "one thread of a worker keeps the interpreter from all others", ttls=(0.3, 1.6)),
        Kind("loop stall", "the event loop of a worker stands still", faces=("asyncio",), ttls=(0.3, 1.8)),
        Kind("fork", "a worker forks while it holds; the child tries to use what it inherited"),
        Kind("cancellation storm", "many acquisitions of a worker are cancelled, or given up, at any point"),
        Kind("lost reply", "a command is applied and its answer never comes", engines=_SERVER),
        Kind("cut", "the connections of a worker end", engines=_SERVER),
        Kind("half-open", "connections of a worker stand, and nothing goes through", engines=_SERVER, ttls=(0.4, 2.0)),
        Kind(
            "slow re-send",
            "an answer is lost, the worker asks again late, then is cut off",
            engines=_SERVER,
            ttls=(2.0, 2.5),
            aim=WAITER,
        ),
        Kind(
            "late answer",
            "answers to a worker come late, then nothing goes through",
            engines=_SERVER,
            ttls=(2.0, 2.5),
            aim=WAITER,
        ),
        Kind(
            "slow server",
            "every command takes longer",
            engines=_SERVER,
            server=True,
            seconds=(0.5, 1.5),
            amounts=(0.02, 0.05, 0.15),
        ),
        Kind("frozen server", "SIGSTOP of the server", engines=_SERVER, server=True, ttls=(0.3, 1.5)),
        Kind(
            "restart",
            "SIGKILL of the server; it comes back with its data",
            engines=_SERVER,
            server=True,
            seconds=(0.2, 0.9),
        ),
        Kind(
            "restart without data", "the same, and all data is lost", engines=_SERVER, server=True, seconds=(0.05, 0.4)
        ),
        Kind(
            "server clock",
            "the server's calendar is set forward, then right again",
            engines=_SERVER,
            server=True,
            seconds=(0.5, 1.0),
            amounts=(3.0,),
            clock=True,
        ),
        Kind(
            "client clock",
            "a worker's calendar is set an hour forward or back, then right again",
            seconds=(0.5, 1.5),
            amounts=(3600.0, -3600.0),
            clock=True,
        ),
        # Long enough for another server to take the place.
        Kind("primary killed", "SIGKILL of the server of the name", engines=_GROUP, server=True, seconds=(3.0, 4.0)),
        Kind("primary frozen", "SIGSTOP of the same", engines=_GROUP, server=True, seconds=(3.0, 4.0)),
        Kind("failover", "a graceful failover of the same", engines=_GROUP, server=True, seconds=(1.0, 2.0)),
    )
}
# Kinds that go together: what one of them brings to light is not excused by the others. Where the first makes no sense,
# the theme makes none.
THEMES = {
    "stopped": ("freeze", "long freeze", "gil stall", "loop stall"),
    "harmless": ("fork", "cancellation storm", "client clock"),
    "deaths": ("kill",),
    "answers": ("lost reply", "cut"),
    "silence": ("half-open", "late answer", "slow re-send"),
    "server": ("slow server", "frozen server", "restart"),
    "lost data": ("restart without data",),
    "lost time": ("server clock",),
    "failover": ("failover", "primary killed", "primary frozen"),
}
_NEVER_TOGETHER = ("restart without data", "server clock")
_LONGEST_S = 4.5


def themes_for(engine: str, face: str, workload: str) -> dict[str, tuple[str, ...]]:
    """The themes that make sense there, each with those of its kinds that do."""
    suited = kinds_for(engine, face, workload)
    themes = {name: kinds for name, kinds in THEMES.items() if kinds[0] in suited}
    return {name: tuple(kind for kind in kinds if kind in suited) for name, kinds in themes.items()}


def kinds_for(engine: str, face: str, workload: str = "") -> list[str]:
    """The faults that make sense there."""
    suited = [kind.name for kind in KINDS.values() if engine in kind.engines and face in kind.faces]
    if workload == "mass":
        # One holder of very many: it is to keep them all, so nothing may strike that ends leases by right.
        ends = {
            "kill",
            "fork",
            "restart without data",
            "server clock",
            "slow re-send",
            "late answer",
            "long freeze",
            "cancellation storm",
            "primary killed",
            "primary frozen",
            "failover",
        }
        suited = [name for name in suited if name not in ends]
    return suited


def draw(round_: Round) -> tuple[Fault, ...]:
    """The schedule of a round: every suited kind once before any comes twice."""
    rng = round_.rng("schedule")
    suited = list(round_.kinds) or kinds_for(round_.engine, round_.face, round_.workload)
    shunned = rng.choice(_NEVER_TOGETHER)
    if set(_NEVER_TOGETHER) <= set(suited):
        suited.remove(shunned)
    busy_until = dict.fromkeys((*round_.labels, SERVER), 0.0)
    bag: list[str] = []
    faults = []
    at_s = 0.3
    while at_s < round_.seconds:
        bag = bag or rng.sample(suited, len(suited))
        fault = _fault(rng, round_, KINDS[bag.pop()], at_s, busy_until)
        if fault is not None:
            faults.append(fault)
        lasted_s = fault.lasts_s if fault is not None and round_.apart else 0.0
        at_s = round(at_s + lasted_s + rng.uniform(*round_.every_s), 3)
    return tuple(faults)


def _fault(rng: random.Random, round_: Round, kind: Kind, at_s: float, busy_until: dict[str, float]) -> Fault | None:
    """One fault, if anybody is free to be struck. Holders and waiters are looked for when it strikes."""
    # Whoever is to keep its leases through all of it is struck for a part of the ttl only.
    ttl_s = round_.ttl / 5 if round_.workload == "mass" else min(round_.ttl, 2.0)
    lasts_s = rng.uniform(*kind.ttls) * ttl_s if kind.ttls[1] else rng.uniform(*kind.seconds)
    lasts_s = round(rng.uniform(*round_.lasts_s) if round_.lasts_s else min(lasts_s, _LONGEST_S), 3)
    amount = rng.choice(kind.amounts) if kind.amounts else 0.0
    free = [label for label in round_.labels if busy_until[label] <= at_s]
    if kind.server:
        target = SERVER
        if busy_until[SERVER] > at_s:
            return None
    elif free:
        target = round_.aim or kind.aim or rng.choice([HOLDER, WAITER, rng.choice(free)])
    else:
        return None
    # Whoever is aimed at by a role is known only then; the round looks for one that is free.
    injected = round_.labels if round_.engine == "memory" and not kind.server else (target,)
    busy_until.update({label: at_s + lasts_s for label in injected if label in busy_until})
    return Fault(at_s, kind.name, target, lasts_s, amount)
