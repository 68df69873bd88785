"""The uncontended pair on groups of servers: how much of its cost is the topology.

A primary feeds its replicas, which costs server time whatever the client does. So groups are compared with two
baselines: a single server, and a primary with as many replicas that the client reaches directly. Primaries share a core
with the client, as the single server does; replicas and sentinels have the other core.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from bench import candidates as known
from bench.stats import ratios, spread
from tests.support.clusters import Cluster
from tests.support.sentinels import Sentinels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.candidates import Candidate
    from bench.scale import Scale
    from bench.testbed import Testbed, Worker
    from holdfast.testing.servers import Server


def groups(testbed: Testbed, scale: Scale, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Compare every candidate with the first one, which is a single server."""
    core, rest = testbed.cores[:1], testbed.cores[-1:]
    kind = testbed.server.kind
    with ExitStack() as exits:
        sentinels = exits.enter_context(Sentinels(kind))
        cluster = exits.enter_context(Cluster(kind))
        bare = exits.enter_context(Cluster(kind, replicas=0))
        one = sentinels.primary()
        testbed.pin_server(core)
        for group in (sentinels, cluster, bare):
            _pin(group.all_servers(), rest)
        _pin([one, *cluster.masters(), *bare.masters()], core)
        testbed.urls |= {
            known.SENTINEL: sentinels.url,
            known.CLUSTER: cluster.url,
            known.BARE_CLUSTER: bare.url,
            known.PRIMARY: one.url,
        }

        def one_round(_contender: Candidate, processes: list[Worker]) -> dict[str, Any]:
            return processes[0].run("pairs", seconds=scale.pair_s)

        runs = testbed.interleaved(candidates, scale.pair_rounds, one_round, cores=core, warm_up=True)
    rates = {run.candidate.name: [figures["pairs_per_s"] for figures in run.rounds] for run in runs}
    rows = [run.row() for run in runs]
    for row in rows:
        for figure, other in (("times_alone", known.HOLDFAST), ("times_replicated", known.HOLDFAST_PRIMARY)):
            if other.name in rates:
                row["figures"][figure] = spread(ratios(rates[other.name], rates[row["candidate"]]))
    return rows


def _pin(servers: Sequence[Server], cores: Sequence[int]) -> None:
    for server in servers:
        if cores:
            os.sched_setaffinity(server.pid, cores)
