"""Decisions of a rate limit, allowed and refused. Server and client share one core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.stats import ratios, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.candidates import Candidate
    from bench.scale import Scale
    from bench.testbed import Testbed, Worker


def decisions(
    testbed: Testbed, scale: Scale, candidates: Sequence[Candidate], compared: Candidate, figure: str
) -> list[dict[str, Any]]:
    """Measure every candidate, also as a multiple of `compared`, round by round."""
    core = testbed.cores[:1]
    testbed.pin_server(core)

    def one_round(_contender: Candidate, processes: list[Worker]) -> dict[str, Any]:
        before = testbed.counters.read()
        figures = processes[0].run("decisions", seconds=scale.pair_s)
        return figures | testbed.counters.per_operation(before, testbed.counters.read(), figures["decisions"])

    runs = testbed.interleaved(candidates, scale.pair_rounds, one_round, cores=core, warm_up=True)
    rates = {run.candidate.name: [figures["decisions_per_s"] for figures in run.rounds] for run in runs}
    rows = [run.row() for run in runs]
    for row in rows:
        if compared.name in rates:
            times = spread(ratios(rates[row["candidate"]], rates[compared.name]))
            row["figures"][figure] = times
    return rows
