"""The parts of the race, in order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from bench import contenders as who
from bench.parts import pools
from bench.parts.built import built
from bench.parts.contended import Setting, contended, lone
from bench.parts.crowd import leases, names
from bench.parts.directory import directory
from bench.parts.groups import groups
from bench.parts.imports import imports
from bench.parts.killed import killed
from bench.parts.limit import decisions
from bench.parts.owner import handed_over, heartbeats
from bench.parts.pair import fan_out, pairs
from bench.parts.queue import drained
from bench.parts.queue_life import queue_life
from bench.parts.store import stores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.arena import Arena
    from bench.scale import Scale

SECTION = (0.001, 0.001)
LONG_SECTION = (0.005, 0.005)


def _setting(scale: Scale, processes: int, callers: int, section: tuple[float, float]) -> Setting:
    return Setting(processes, callers, scale.contended_s, scale.contended_rounds, section, count_s=scale.count_s)


def _eight_callers(arena: Arena, scale: Scale) -> list[dict[str, Any]]:
    return contended(arena, _setting(scale, 2, 4, SECTION), who.CONTENDED)


def _sixteen_processes(arena: Arena, scale: Scale, contenders: Sequence[who.Contender]) -> list[dict[str, Any]]:
    return contended(arena, _setting(scale, 16, 1, LONG_SECTION), contenders)


def _eight_processes_on_a_file(arena: Arena, scale: Scale) -> list[dict[str, Any]]:
    return contended(arena, _setting(scale, 8, 1, SECTION), who.CONTENDED_FILE)


def _lone_waiter(arena: Arena, scale: Scale, contenders: Sequence[who.Contender]) -> list[dict[str, Any]]:
    setting = Setting(2, 1, scale.lone_s, scale.contended_rounds, section=(0.0, 0.04), rest=(0.0, 0.02))
    return lone(arena, setting, contenders)


PARTS: dict[str, Callable[[Arena, Scale], list[dict[str, Any]]]] = {
    "pair": partial(pairs, contenders=who.PAIRS),
    "layers": partial(pairs, contenders=who.LAYERS),
    "pair_unix": partial(pairs, contenders=who.PAIRS_UNIX),
    "pair_file": partial(pairs, contenders=who.PAIRS_FILE),
    "groups": partial(groups, contenders=who.GROUPS),
    "fan_out": partial(fan_out, contenders=who.FAN_OUT, peer=who.REDIS_ASYNCIO),
    "contended": _eight_callers,
    "sixteen": partial(_sixteen_processes, contenders=who.SIXTEEN),
    "hand_over": partial(_sixteen_processes, contenders=who.HAND_OVER),
    "lone": partial(_lone_waiter, contenders=who.SINGLE_WAITER),
    "contended_file": _eight_processes_on_a_file,
    "lone_file": partial(_lone_waiter, contenders=who.CONTENDED_FILE),
    "killed": partial(killed, contenders=who.KILLED),
    "built": partial(built, urls=who.BUILT),
    "leases": partial(leases, contenders=who.LEASES),
    "names": partial(names, contender=who.NAMES),
    "pool": pools.sizes,
    "pool_crowd": pools.crowd,
    "limit": partial(decisions, contenders=who.LIMITS, compared=who.COUNT[0], figure="of_floor"),
    "refused": partial(decisions, contenders=who.REFUSED, compared=who.LIMIT[0], figure="times_allowed"),
    "directory": directory,
    "store": partial(stores, contenders=who.STORES),
    "queue": partial(
        drained,
        contenders=who.QUEUES,
        compared=who.QUEUE,
        peers={"times_streams": who.STREAM_QUEUES, "times_jobs": who.JOB_QUEUES},
    ),
    "queue_life": queue_life,
    "owner": heartbeats,
    "owner_killed": handed_over,
    "imports": partial(imports, statements=who.IMPORTS),
}
