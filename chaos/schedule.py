"""The schedule of faults of a round, drawn from its seed.

A pure function: the same round has the same schedule on every machine; a fault that a machine cannot inject is counted
as not run. No worker and no server has two faults at a time, and no round loses both the server's data and its clock:
no engine promises anything then.
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
    """One fault: its second in the round, kind, target and length. `amount` is a delay or an offset, in seconds."""

    at_s: float
    kind: str
    target: str
    lasts_s: float
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault: its engines and faces, its length (in ttls or in seconds), and its target."""

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
        Kind("kill", "SIGKILL of a worker; another replaces it", engines=("sqlite", "file", "redis", *_GROUP)),
        Kind("freeze", "SIGSTOP of a worker, past its ttl", ttls=(1.2, 2.0)),
        Kind("long freeze", "the same, for several ttls", engines=("sqlite", "redis"), ttls=(3.7, 4.3), aim=HOLDER),
        Kind("gil stall", "one thread of a worker blocks the interpreter for all others", ttls=(0.3, 1.6)),
        Kind("loop stall", "the event loop of a worker is blocked", faces=("asyncio",), ttls=(0.3, 1.8)),
        Kind("fork", "a worker forks while it holds; the child tries to use what it inherited"),
        Kind("cancellation storm", "many acquires of a worker are cancelled, or time out, at any point"),
        Kind("lost reply", "a command is applied and its reply is lost", engines=_SERVER),
        Kind("cut", "the connections of a worker are closed", engines=_SERVER),
        Kind("half-open", "connections of a worker stay open and deliver nothing", engines=_SERVER, ttls=(0.4, 2.0)),
        Kind(
            "slow re-send",
            "a reply is lost, the worker resends late, then its connections deliver nothing",
            engines=_SERVER,
            ttls=(2.0, 2.5),
            aim=WAITER,
        ),
        Kind(
            "late answer",
            "replies to a worker come late, then its connections deliver nothing",
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
            "SIGKILL of the server; it restarts with its data",
            engines=_SERVER,
            server=True,
            seconds=(0.2, 0.9),
        ),
        Kind(
            "restart without data", "the same, and all data is lost", engines=_SERVER, server=True, seconds=(0.05, 0.4)
        ),
        Kind(
            "server clock",
            "the server's wall clock is set forward, then right again",
            engines=_SERVER,
            server=True,
            seconds=(0.5, 1.0),
            amounts=(3.0,),
            clock=True,
        ),
        Kind(
            "client clock",
            "a worker's wall clock is set an hour forward or back, then right again",
            seconds=(0.5, 1.5),
            amounts=(3600.0, -3600.0),
            clock=True,
        ),
        # Long enough for another server to replace it.
        Kind("primary killed", "SIGKILL of the server of the name", engines=_GROUP, server=True, seconds=(3.0, 4.0)),
        Kind("primary frozen", "SIGSTOP of the same", engines=_GROUP, server=True, seconds=(3.0, 4.0)),
        Kind("failover", "a graceful failover of the same", engines=_GROUP, server=True, seconds=(1.0, 2.0)),
    )
}
# Kinds that go together: a fault of one kind does not excuse what another kind shows. Where the first kind makes no
# sense, the theme makes none.
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
    """Return the themes that make sense there, each with those of its kinds that do."""
    suited = kinds_for(engine, face, workload)
    themes = {name: kinds for name, kinds in THEMES.items() if kinds[0] in suited}
    return {name: tuple(kind for kind in kinds if kind in suited) for name, kinds in themes.items()}


def kinds_for(engine: str, face: str, workload: str = "") -> list[str]:
    """Return the kinds of faults that make sense there."""
    suited = [kind.name for kind in KINDS.values() if engine in kind.engines and face in kind.faces]
    if workload == "mass":
        # One worker must keep thousands of leases, so that no fault may end leases legitimately.
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
    """Return the schedule of a round: every suited kind once before any comes twice."""
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
    """Return one fault, if a target is free. The runner finds holders and waiters when the fault begins."""
    # A worker that must keep its leases gets faults for a part of the ttl only.
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
    # The worker of a role is known only when the fault begins; the runner chooses one without a fault.
    injected = round_.labels if round_.engine == "memory" and not kind.server else (target,)
    busy_until.update({label: at_s + lasts_s for label in injected if label in busy_until})
    return Fault(at_s, kind.name, target, lasts_s, amount)
