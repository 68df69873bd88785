"""One decision of a limit after the other: allowed ones, and refused ones. Server and client share one core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.figures import ratios, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.arena import Arena, Worker
    from bench.contenders import Contender
    from bench.scale import Scale


def decisions(
    arena: Arena, scale: Scale, contenders: Sequence[Contender], compared: Contender, figure: str
) -> list[dict[str, Any]]:
    """Everybody, also as a multiple of one of them, round by round."""
    core = arena.cores[:1]
    arena.pin_server(core)

    def one_round(_contender: Contender, crew: list[Worker]) -> dict[str, Any]:
        before = arena.meter.read()
        figures = crew[0].do("decisions", seconds=scale.pair_s)
        return figures | arena.meter.spent(before, arena.meter.read(), figures["decisions"])

    runs = arena.interleaved(contenders, scale.pair_rounds, one_round, cores=core, warm_up=True)
    rates = {run.contender.name: [figures["decisions_per_s"] for figures in run.rounds] for run in runs}
    rows = [run.row() for run in runs]
    for row in rows:
        if compared.name in rates:
            times = spread(ratios(rates[row["contender"]], rates[compared.name]))
            row["figures"][figure] = times._asdict()
    return rows
