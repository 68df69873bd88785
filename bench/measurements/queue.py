"""Messages through a queue: published, then handled by one worker that does nothing with them.

Publishing and handling are measured separately. Extra work of a library (results, events) counts as its cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.stats import ratios, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.candidates import Candidate
    from bench.scale import Scale
    from bench.testbed import Testbed, Worker


def drained(
    testbed: Testbed,
    scale: Scale,
    candidates: Sequence[Candidate],
    compared: Candidate,
    peers: dict[str, Sequence[Candidate]],
) -> list[dict[str, Any]]:
    """Measure every candidate; also give the rate of `compared` as a multiple of the others and of the best peers."""
    count = scale.messages

    def one_round(_contender: Candidate, processes: list[Worker]) -> dict[str, Any]:
        before = testbed.counters.read()
        figures = processes[0].run("publish", count=count)
        between = testbed.counters.read()
        published = testbed.counters.per_operation(before, between, count)
        figures |= processes[0].run("drain", count=count)
        handled = testbed.counters.per_operation(between, testbed.counters.read(), count)
        figures["commands"] = published["commands"] + handled["commands"]
        figures["server_cpu_us"] = published["server_cpu_us"] + handled["server_cpu_us"]
        return figures

    runs = testbed.interleaved(candidates, scale.message_rounds, one_round, warm_up=True)
    rates = {run.candidate.name: [figures["messages_per_s"] for figures in run.rounds] for run in runs}
    rows = [run.row() for run in runs]
    ours = rates.get(compared.name)
    for row in rows if ours else ():
        row["figures"]["times_slower"] = spread(ratios(ours, rates[row["candidate"]]))
        if row["candidate"] != compared.name:
            continue
        for figure, group in peers.items():
            ran = [rates[each.name] for each in group if each.name in rates]
            if len(ran) == len(group):  # a peer that did not run may be the fastest
                fastest = [max(each) for each in zip(*ran, strict=True)]
                row["figures"][figure] = spread(ratios(ours, fastest))
    return rows
