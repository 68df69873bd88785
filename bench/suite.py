"""The measurements of the benchmark, in order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from bench import candidates as known
from bench.measurements import pool
from bench.measurements.build_once import build_once
from bench.measurements.contended import Setting, contended, single_waiter
from bench.measurements.groups import groups
from bench.measurements.holder_killed import holder_killed
from bench.measurements.imports import imports
from bench.measurements.limit import decisions
from bench.measurements.many_leases import leases, names
from bench.measurements.owner import heartbeats, takeover
from bench.measurements.pair import fan_out, pairs
from bench.measurements.queue import drained
from bench.measurements.queue_behaviour import queue_behaviour
from bench.measurements.registry import registry
from bench.measurements.store import stores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.scale import Scale
    from bench.testbed import Testbed

SECTION = (0.001, 0.001)
LONG_SECTION = (0.005, 0.005)


def _setting(scale: Scale, processes: int, callers: int, section: tuple[float, float]) -> Setting:
    return Setting(processes, callers, scale.contended_s, scale.contended_rounds, section, count_s=scale.count_s)


def _eight_callers(testbed: Testbed, scale: Scale) -> list[dict[str, Any]]:
    return contended(testbed, _setting(scale, 2, 4, SECTION), known.CONTENDED)


def _sixteen_processes(testbed: Testbed, scale: Scale, candidates: Sequence[known.Candidate]) -> list[dict[str, Any]]:
    return contended(testbed, _setting(scale, 16, 1, LONG_SECTION), candidates)


def _eight_processes_on_a_file(testbed: Testbed, scale: Scale) -> list[dict[str, Any]]:
    return contended(testbed, _setting(scale, 8, 1, SECTION), known.CONTENDED_FILE)


def _single_waiter(testbed: Testbed, scale: Scale, candidates: Sequence[known.Candidate]) -> list[dict[str, Any]]:
    setting = Setting(2, 1, scale.single_waiter_s, scale.contended_rounds, section=(0.0, 0.04), rest=(0.0, 0.02))
    return single_waiter(testbed, setting, candidates)


MEASUREMENTS: dict[str, Callable[[Testbed, Scale], list[dict[str, Any]]]] = {
    "pair": partial(pairs, candidates=known.PAIRS),
    "layers": partial(pairs, candidates=known.LAYERS),
    "pair_unix": partial(pairs, candidates=known.PAIRS_UNIX),
    "pair_file": partial(pairs, candidates=known.PAIRS_FILE),
    "groups": partial(groups, candidates=known.GROUPS),
    "fan_out": partial(fan_out, candidates=known.FAN_OUT, peer=known.REDIS_ASYNCIO),
    "contended": _eight_callers,
    "contended_16": partial(_sixteen_processes, candidates=known.SIXTEEN),
    "handover_layers": partial(_sixteen_processes, candidates=known.HAND_OVER),
    "single_waiter": partial(_single_waiter, candidates=known.SINGLE_WAITER),
    "contended_file": _eight_processes_on_a_file,
    "single_waiter_file": partial(_single_waiter, candidates=known.CONTENDED_FILE),
    "holder_killed": partial(holder_killed, candidates=known.KILLED),
    "build_once": partial(build_once, urls=known.BUILT),
    "leases": partial(leases, candidates=known.LEASES),
    "names": partial(names, candidate=known.NAMES),
    "pool": pool.sizes,
    "pool_contended": pool.contended,
    "limit": partial(decisions, candidates=known.LIMITS, compared=known.COUNT[0], figure="of_floor"),
    "limit_refused": partial(decisions, candidates=known.REFUSED, compared=known.LIMIT[0], figure="times_allowed"),
    "registry": registry,
    "store": partial(stores, candidates=known.STORES),
    "queue": partial(
        drained,
        candidates=known.QUEUES,
        compared=known.QUEUE,
        peers={"times_streams": known.STREAM_QUEUES, "times_jobs": known.JOB_QUEUES},
    ),
    "queue_behaviour": queue_behaviour,
    "owner": heartbeats,
    "owner_killed": takeover,
    "imports": partial(imports, statements=known.IMPORTS),
}
