"""Messages through a queue: published, then handled by one worker that does nothing with them.

Both are metered apart. What a library does beyond (results, events) is its own affair, and costs what it costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.figures import ratios, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.arena import Arena, Worker
    from bench.contenders import Contender
    from bench.scale import Scale


def drained(
    arena: Arena,
    scale: Scale,
    contenders: Sequence[Contender],
    compared: Contender,
    peers: dict[str, Sequence[Contender]],
) -> list[dict[str, Any]]:
    """Everybody; and how many times as fast one of them was, as each other and as the fastest of some peers."""
    count = scale.messages

    def one_round(_contender: Contender, crew: list[Worker]) -> dict[str, Any]:
        before = arena.meter.read()
        figures = crew[0].do("publish", count=count)
        between = arena.meter.read()
        published = arena.meter.spent(before, between, count)
        figures |= crew[0].do("drain", count=count)
        handled = arena.meter.spent(between, arena.meter.read(), count)
        figures["commands"] = published["commands"] + handled["commands"]
        figures["server_cpu_us"] = published["server_cpu_us"] + handled["server_cpu_us"]
        return figures

    runs = arena.interleaved(contenders, scale.message_rounds, one_round, warm_up=True)
    rates = {run.contender.name: [figures["messages_per_s"] for figures in run.rounds] for run in runs}
    rows = [run.row() for run in runs]
    ours = rates.get(compared.name)
    for row in rows if ours else ():
        row["figures"]["times_slower"] = spread(ratios(ours, rates[row["contender"]]))._asdict()
        if row["contender"] != compared.name:
            continue
        for figure, group in peers.items():
            ran = [rates[each.name] for each in group if each.name in rates]
            if len(ran) == len(group):  # one that did not run may have been the fastest
                fastest = [max(each) for each in zip(*ran, strict=True)]
                row["figures"][figure] = spread(ratios(ours, fastest))._asdict()
    return rows
