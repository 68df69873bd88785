"""Uncontended pairs of acquire and release; and a hundred tasks in one process.

For the pair, server and client share one core: this has the least noise, and the time is the sum of all work. For the
hundred tasks each has its own core, because that measurement is about the work of the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.stats import ratios, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.candidates import Candidate
    from bench.scale import Scale
    from bench.testbed import Run, Testbed, Worker


def pairs(testbed: Testbed, scale: Scale, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Compare every candidate with the first one, which is the floor."""
    core = testbed.cores[:1]
    testbed.pin_server(core)

    def one_round(_contender: Candidate, processes: list[Worker]) -> dict[str, Any]:
        return _measure(testbed, processes[0], "pairs", seconds=scale.pair_s)

    runs = testbed.interleaved(candidates, scale.pair_rounds, one_round, cores=core, warm_up=True)
    return against(runs, candidates[0])


def fan_out(testbed: Testbed, scale: Scale, candidates: Sequence[Candidate], peer: Candidate) -> list[dict[str, Any]]:
    """Run many tasks on different names in one process; also give each rate as a multiple of one peer's."""
    testbed.pin_server(testbed.cores[:1])

    def one_round(_contender: Candidate, processes: list[Worker]) -> dict[str, Any]:
        return _measure(testbed, processes[0], "fan_out", seconds=scale.fan_s, callers=scale.callers)

    runs = testbed.interleaved(candidates, scale.fan_rounds, one_round, cores=testbed.cores[-1:], warm_up=True)
    rows, rates = against(runs, candidates[0]), _rates(runs)
    for row in rows:
        if peer.name in rates:
            row["figures"]["times_peer"] = spread(ratios(rates[row["candidate"]], rates[peer.name]))
    return rows


def _measure(testbed: Testbed, worker: Worker, workload: str, **arguments: Any) -> dict[str, Any]:
    before = testbed.counters.read()
    figures = worker.run(workload, **arguments)
    return figures | testbed.counters.per_operation(before, testbed.counters.read(), figures["pairs"])


def _rates(runs: list[Run]) -> dict[str, list[float]]:
    return {run.candidate.name: [figures["pairs_per_s"] for figures in run.rounds] for run in runs}


def _medians(runs: list[Run]) -> dict[str, list[float]]:
    return {run.candidate.name: [figures["p50_us"] for figures in run.rounds] for run in runs}


def against(runs: list[Run], floor: Candidate) -> list[dict[str, Any]]:
    """Return the rows, with the time of a pair as a multiple of the floor's, round by round.

    Once by rate, which counts everything; and once by median time, which a busy machine disturbs less.
    """
    rows, rates, medians = [run.row() for run in runs], _rates(runs), _medians(runs)
    for row in rows:
        if floor.name in rates:
            own = row["candidate"]
            row["figures"]["times_floor"] = spread(ratios(rates[floor.name], rates[own]))
            row["figures"]["times_floor_p50"] = spread(ratios(medians[own], medians[floor.name]))
    return rows
