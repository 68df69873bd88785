"""Borrow and return: how the cost grows with the pool, and how long a borrow takes with many borrowers.

The two-phase algorithm that Holdfast replaces and, with many borrowers, a floor run on the same server: see
`bench/programs/borrower.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from bench.candidates import FILE, POOL_CONTENDED, TCP, borrowing
from bench.environments import ROOT
from bench.stats import percentile
from bench.testbed import Run

if TYPE_CHECKING:
    from bench.scale import Scale
    from bench.testbed import Testbed

_PROGRAM = ("-m", "bench.programs.borrower")
_LONGEST_S = 300


def sizes(testbed: Testbed, scale: Scale) -> list[dict[str, Any]]:
    """Measure one borrower for each size; `growth` is the median time as a multiple of that of the smallest pool."""
    rows = []
    for way, wire in (("holdfast", TCP), ("holdfast", FILE), ("two-phase", TCP)):
        runs = [Run(borrowing(way, items, wire), [], {}) for items in scale.pool_items]
        for _ in range(scale.pool_rounds):
            smallest = 0.0
            for run, items in zip(runs, scale.pool_items, strict=True):
                figures = _round(testbed, way, wire, items, 1, 1, scale.pool_s, 0.0)
                smallest = smallest or figures["p50_us"]
                run.rounds.append(figures | {"growth": figures["p50_us"] / smallest})
        rows += [run.row() for run in runs]
    return rows


def contended(testbed: Testbed, scale: Scale) -> list[dict[str, Any]]:
    """Measure fifty borrowers in five processes, with more items than borrowers: no borrow waits for an item."""
    runs = [Run(each, [], {}) for each in POOL_CONTENDED]
    for _ in range(scale.pool_rounds):
        for run in runs:
            run.rounds.append(_round(testbed, run.candidate.adapter, TCP, 2_000, 5, 10, scale.pool_s, 0.02))
    return [run.row() for run in runs]


def _round(
    testbed: Testbed, way: str, wire: str, items: int, processes: int, callers: int, seconds: float, hold_s: float
) -> dict[str, Any]:
    testbed.server.command("FLUSHALL")
    url = f"redis://127.0.0.1:{testbed.server.port}"
    if wire == FILE:
        url = f"sqlite://{testbed.folder}/{testbed.new_name()}.db"
    job = {"way": way, "url": url, "seconds": seconds, "callers": callers, "hold_s": hold_s}
    started: list[subprocess.Popen[str]] = []
    try:
        for number in range(processes):
            started.append(_started(testbed, {**job, "items": 0 if number else items}))
            assert json.loads(started[-1].stdout.readline()) == "ready"  # type: ignore[union-attr]
        before = testbed.counters.read()
        for each in started:
            each.stdin.write("go\n")  # type: ignore[union-attr]
            each.stdin.flush()  # type: ignore[union-attr]
        answers = [json.loads(each.communicate(timeout=_LONGEST_S)[0]) for each in started]
        after = testbed.counters.read()
    finally:
        for each in started:
            each.kill()
            each.wait()
    pairs = sum(one["pairs"] for one in answers)
    borrows = [seconds for one in answers for seconds in one["borrows"]]
    figures = {
        "pairs_per_s": pairs / max(one["seconds"] for one in answers),
        "p50_us": percentile(borrows, 0.5) * 1e6,
        "p99_us": percentile(borrows, 0.99) * 1e6,
    }
    return figures | ({} if wire == FILE else testbed.counters.per_operation(before, after, pairs))


def _started(testbed: Testbed, job: dict[str, Any]) -> subprocess.Popen[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [testbed.environments["holdfast"].python, *_PROGRAM, json.dumps(job)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=kept)
