"""Many leases that one process holds and renews; and many names, each used once and then forgotten by the engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench.candidates import OURS
from bench.testbed import Run, WorkerFailed, clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.candidates import Candidate
    from bench.scale import Scale
    from bench.testbed import Testbed

_FORGET_S = 60.0


def leases(testbed: Testbed, scale: Scale, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Measure the cost of holding leases: threads, CPU of both sides, memory of the server.

    All leases must still be held at the end. A peer with a thread per lease holds fewer; the row says how many.
    """
    testbed.pin_server(())
    rows = []
    for candidate in candidates:
        ours = candidate.role == OURS
        count, seconds = (scale.leases, scale.leases_s) if ours else (scale.peer_leases, scale.peer_leases_s)
        shown = candidate if ours else candidate._replace(name=f"{candidate.name}, {count} leases")
        try:
            rows.append(Run(shown, [_held(testbed, candidate, count, seconds)], {}).row())
        except WorkerFailed as why:
            testbed.record_failure(candidate, str(why))
    return rows


def _held(testbed: Testbed, candidate: Candidate, count: int, seconds: float) -> dict[str, Any]:
    testbed.server.command("FLUSHALL", "SYNC")  # keys of earlier measurements would expire meanwhile
    with testbed.start(candidate) as worker:
        worker.run("turn", name=testbed.new_name())
        empty = testbed.counters.read()
        worker.run("hold_many", count=count)
        full, began, before = testbed.counters.read(), clock(), worker.run("process_cost")
        time.sleep(seconds)
        after, later = worker.run("process_cost"), testbed.counters.read()
        passed = clock() - began
        return {
            "leases": count,
            "threads": after["threads"],
            "client_cpu_share": (after["cpu_s"] - before["cpu_s"]) / passed,
            "server_cpu_share": (later.cpu_s - full.cpu_s) / passed,
            "cpu_share": (after["cpu_s"] - before["cpu_s"] + later.cpu_s - full.cpu_s) / passed,
            "bytes_each": (full.memory - empty.memory) / count,
            **worker.run("release_all"),
        }


def names(testbed: Testbed, scale: Scale, candidate: Candidate) -> list[dict[str, Any]]:
    """Measure the memory of names that are not used again, and when the engine frees it."""
    testbed.pin_server(())
    candidate = candidate._replace(options={"fence_memory": scale.fence_memory_s})
    try:
        return [Run(candidate, [_forgotten(testbed, scale, candidate)], {}).row()]
    except WorkerFailed as why:
        testbed.record_failure(candidate, str(why))
        return []


def _keys(testbed: Testbed) -> int:
    """Count the keys, without the marker that Holdfast writes once in a database."""
    return testbed.server.command("DBSIZE") - testbed.server.command("EXISTS", "hf1:layout")


def _forgotten(testbed: Testbed, scale: Scale, candidate: Candidate) -> dict[str, Any]:
    testbed.server.command("FLUSHALL", "SYNC")
    with testbed.start(candidate) as worker:
        worker.run("turn", name=testbed.new_name())
        empty = testbed.counters.read().memory
        used = worker.run("use_names", count=scale.names, callers=scale.callers)
        full, ended = testbed.counters.read().memory, clock()
        kept = _keys(testbed)
        while _keys(testbed) > 0 and clock() - ended < scale.fence_memory_s + _FORGET_S:
            time.sleep(0.2)
        return {
            "names": used["names"],
            "names_per_s": used["names"] / used["seconds"],
            "kept_at_the_end": kept,
            "bytes_each": (full - empty) / max(1, kept),
            "grown_mb": (full - empty) / 1e6,
            "fence_memory_s": scale.fence_memory_s,
            "forgotten_after_s": clock() - ended,
            "left": _keys(testbed),
            "left_share": max(0, testbed.counters.read().memory - empty) / max(1, full - empty),
        }
