"""The same uncontended pair on groups of servers: how much of its price is the way there.

A primary feeds its replicas, which is work of the server, whoever asks. So there are two things to compare with: one
server alone, and the same kind of server with as many replicas, reached directly. Primaries share a core with the
client, as one server does; replicas and sentinels have the other.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from bench import contenders as who
from bench.figures import ratios, spread
from tests.support.clusters import Cluster
from tests.support.sentinels import Sentinels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.arena import Arena, Worker
    from bench.contenders import Contender
    from bench.scale import Scale
    from holdfast.testing.servers import Server


def groups(arena: Arena, scale: Scale, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    """Everybody against the first of them, which is alone."""
    core, rest = arena.cores[:1], arena.cores[-1:]
    kind = arena.server.kind
    with ExitStack() as exits:
        sentinels = exits.enter_context(Sentinels(kind))
        cluster = exits.enter_context(Cluster(kind))
        bare = exits.enter_context(Cluster(kind, replicas=0))
        one = sentinels.primary()
        arena.pin_server(core)
        for group in (sentinels, cluster, bare):
            _pin(group.everybody(), rest)
        _pin([one, *cluster.masters(), *bare.masters()], core)
        arena.urls |= {
            who.SENTINEL: sentinels.url,
            who.CLUSTER: cluster.url,
            who.BARE_CLUSTER: bare.url,
            who.PRIMARY: one.url,
        }

        def one_round(_contender: Contender, crew: list[Worker]) -> dict[str, Any]:
            return crew[0].do("pairs", seconds=scale.pair_s)

        runs = arena.interleaved(contenders, scale.pair_rounds, one_round, cores=core, warm_up=True)
    rates = {run.contender.name: [figures["pairs_per_s"] for figures in run.rounds] for run in runs}
    rows = [run.row() for run in runs]
    for row in rows:
        for figure, other in (("times_alone", who.HOLDFAST), ("times_replicated", who.HOLDFAST_PRIMARY)):
            if other.name in rates:
                row["figures"][figure] = spread(ratios(rates[other.name], rates[row["contender"]]))._asdict()
    return rows


def _pin(servers: Sequence[Server], cores: Sequence[int]) -> None:
    for server in servers:
        if cores:
            os.sched_setaffinity(server.pid, cores)
