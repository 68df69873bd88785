"""Many leases of one process, held and renewed; and many names, each used once and then forgotten."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench.arena import Broken, Run, clock
from bench.contenders import OURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.arena import Arena
    from bench.contenders import Contender
    from bench.scale import Scale

_FORGET_S = 60.0


def leases(arena: Arena, scale: Scale, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    """What it costs to hold them: threads, CPU of both sides, the server's memory. All must still be held at the end.

    A peer that keeps a thread for each lease is asked for fewer; the row says how many.
    """
    arena.pin_server(())
    rows = []
    for contender in contenders:
        ours = contender.role == OURS
        count, seconds = (scale.leases, scale.leases_s) if ours else (scale.peer_leases, scale.peer_leases_s)
        shown = contender if ours else contender._replace(name=f"{contender.name}, {count} leases")
        try:
            rows.append(Run(shown, [_held(arena, contender, count, seconds)], {}).row())
        except Broken as why:
            arena.note(contender, str(why))
    return rows


def _held(arena: Arena, contender: Contender, count: int, seconds: float) -> dict[str, Any]:
    arena.server.command("FLUSHALL", "SYNC")  # what others left behind would expire meanwhile
    with arena.start(contender) as worker:
        worker.do("turn", name=arena.new_name())
        empty = arena.meter.read()
        worker.do("gather", count=count)
        full, began, before = arena.meter.read(), clock(), worker.do("look")
        time.sleep(seconds)
        after, later = worker.do("look"), arena.meter.read()
        passed = clock() - began
        return {
            "leases": count,
            "threads": after["threads"],
            "client_cpu_share": (after["cpu_s"] - before["cpu_s"]) / passed,
            "server_cpu_share": (later.cpu_s - full.cpu_s) / passed,
            "cpu_share": (after["cpu_s"] - before["cpu_s"] + later.cpu_s - full.cpu_s) / passed,
            "bytes_each": (full.memory - empty.memory) / count,
            **worker.do("give_all"),
        }


def names(arena: Arena, scale: Scale, contender: Contender) -> list[dict[str, Any]]:
    """How much memory names take that nobody will use again, and when it is back."""
    arena.pin_server(())
    contender = contender._replace(options={"fence_memory": scale.fence_memory_s})
    try:
        return [Run(contender, [_forgotten(arena, scale, contender)], {}).row()]
    except Broken as why:
        arena.note(contender, str(why))
        return []


def _forgotten(arena: Arena, scale: Scale, contender: Contender) -> dict[str, Any]:
    arena.server.command("FLUSHALL", "SYNC")
    with arena.start(contender) as worker:
        worker.do("turn", name=arena.new_name())
        empty = arena.meter.read().memory
        used = worker.do("use_names", count=scale.names, callers=scale.callers)
        full, ended = arena.meter.read().memory, clock()
        kept = arena.server.command("DBSIZE")
        while arena.server.command("DBSIZE") > 0 and clock() - ended < scale.fence_memory_s + _FORGET_S:
            time.sleep(0.2)
        return {
            "names": used["names"],
            "names_per_s": used["names"] / used["seconds"],
            "kept_at_the_end": kept,
            "bytes_each": (full - empty) / max(1, kept),
            "grown_mb": (full - empty) / 1e6,
            "fence_memory_s": scale.fence_memory_s,
            "forgotten_after_s": clock() - ended,
            "left": arena.server.command("DBSIZE"),
            "left_share": max(0, arena.meter.read().memory - empty) / max(1, full - empty),
        }
