"""One acquire and release that nobody contests, over and over; and a hundred tasks at it in one process.

For the pair, server and client share one core: least noise, and the time is the sum of all work. For the hundred tasks
each has a core, because there the client's own work is the question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.figures import ratios, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.arena import Arena, Run, Worker
    from bench.contenders import Contender
    from bench.scale import Scale


def pairs(arena: Arena, scale: Scale, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    """Everybody against the first of them, which is the floor."""
    core = arena.cores[:1]
    arena.pin_server(core)

    def one_round(_contender: Contender, crew: list[Worker]) -> dict[str, Any]:
        return _counted(arena, crew[0], "pairs", seconds=scale.pair_s)

    runs = arena.interleaved(contenders, scale.pair_rounds, one_round, cores=core, warm_up=True)
    return against(runs, contenders[0])


def fan_out(arena: Arena, scale: Scale, contenders: Sequence[Contender], peer: Contender) -> list[dict[str, Any]]:
    """Many tasks on different names in one process, also as a multiple of one peer's rate."""
    arena.pin_server(arena.cores[:1])

    def one_round(_contender: Contender, crew: list[Worker]) -> dict[str, Any]:
        return _counted(arena, crew[0], "fan_out", seconds=scale.fan_s, callers=scale.callers)

    runs = arena.interleaved(contenders, scale.fan_rounds, one_round, cores=arena.cores[-1:], warm_up=True)
    rows, rates = against(runs, contenders[0]), _rates(runs)
    for row in rows:
        if peer.name in rates:
            row["figures"]["times_peer"] = spread(ratios(rates[row["contender"]], rates[peer.name]))._asdict()
    return rows


def _counted(arena: Arena, worker: Worker, deed: str, **arguments: Any) -> dict[str, Any]:
    before = arena.meter.read()
    figures = worker.do(deed, **arguments)
    return figures | arena.meter.spent(before, arena.meter.read(), figures["pairs"])


def _rates(runs: list[Run]) -> dict[str, list[float]]:
    return {run.contender.name: [figures["pairs_per_s"] for figures in run.rounds] for run in runs}


def _middles(runs: list[Run]) -> dict[str, list[float]]:
    return {run.contender.name: [figures["p50_us"] for figures in run.rounds] for run in runs}


def against(runs: list[Run], floor: Contender) -> list[dict[str, Any]]:
    """The rows, with how many times the floor's time a pair takes, round by round.

    By rate, which counts everything; and by median time, which a busy machine disturbs less.
    """
    rows, rates, middles = [run.row() for run in runs], _rates(runs), _middles(runs)
    for row in rows:
        if floor.name in rates:
            own = row["contender"]
            row["figures"]["times_floor"] = spread(ratios(rates[floor.name], rates[own]))._asdict()
            row["figures"]["times_floor_p50"] = spread(ratios(middles[own], middles[floor.name]))._asdict()
    return rows
