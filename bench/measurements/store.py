"""Rows per second into one LanceDB table, by the number of concurrent writers: see `bench/programs/store_writer.py`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.candidates import OURS
from bench.environments import ROOT
from bench.stats import ratios, spread
from bench.testbed import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.candidates import Candidate
    from bench.scale import Scale
    from bench.testbed import Testbed

_PROGRAM = str(Path(__file__).resolve().parents[1] / "programs" / "store_writer.py")
_PROCESSES = 4
_TIMEOUT_S = 10.0
_LONGEST_S = 300


def stores(testbed: Testbed, scale: Scale, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Measure every candidate with each number of writers; ours also as a multiple of the better lock."""
    if testbed.environments["lancedb"].why_not:
        testbed.not_run["LanceDB"] = testbed.environments["lancedb"].why_not
        return []
    rows = []
    for writers in scale.store_writers:
        runs = [Run(each._replace(name=f"{each.name}, {writers} writers"), [], {}) for each in candidates]
        for _ in range(scale.store_rounds):
            for run in runs:
                run.rounds.append(_round(testbed, run.candidate, writers, scale.store_s))
        locks = [[one["rows_per_s"] for one in run.rounds] for run in runs if run.candidate.options.get("lock")]
        best = [max(each) for each in zip(*locks, strict=True)]
        for run in runs:
            row = run.row()
            if run.candidate.role == OURS and best:
                own = [one["rows_per_s"] for one in run.rounds]
                row["figures"]["times_locks"] = spread(ratios(own, best))
            rows.append(row)
    return rows


def _round(testbed: Testbed, candidate: Candidate, writers: int, seconds: float) -> dict[str, Any]:
    processes = min(_PROCESSES, writers)
    with tempfile.TemporaryDirectory(dir=testbed.folder) as folder:
        job = {
            "way": candidate.adapter,
            "mode": candidate.options.get("mode", ""),
            "directory": folder,
            "url": f"redis://127.0.0.1:{testbed.server.port}",
            "seconds": seconds,
            "timeout_s": _TIMEOUT_S,
        }
        shares = [writers // processes + (number < writers % processes) for number in range(processes)]
        jobs = [{**job, "writers": share, "writer": n, "creates": n == 0} for n, share in enumerate(shares)]
        answers = _run_all(testbed, jobs)
        found = json.loads(_started(testbed, {**job, "way": "count"}).communicate(timeout=_LONGEST_S)[0])
    done, failed = (sum(one[key] for one in answers) for key in ("done", "failed"))
    return {
        "rows_per_s": found["distinct"] / max(one["seconds"] for one in answers),
        "succeeded": done / (done + failed),
        "failures": failed,
        "rows_lost": max(0, done - found["distinct"]),
        "rows_twice": found["rows"] - found["distinct"],
    }


def _run_all(testbed: Testbed, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    started: list[subprocess.Popen[str]] = []
    try:
        for some in (jobs[:1], jobs[1:]):  # the first writer creates the table
            started += [_started(testbed, job) for job in some]
            for each in started[-len(some) :] if some else ():
                assert json.loads(each.stdout.readline()) == "ready"  # type: ignore[union-attr]
        for each in started:
            each.stdin.write("go\n")  # type: ignore[union-attr]
            each.stdin.flush()  # type: ignore[union-attr]
        return [json.loads(each.communicate(timeout=_LONGEST_S)[0]) for each in started]
    finally:
        for each in started:
            each.kill()
            each.wait()


def _started(testbed: Testbed, job: dict[str, Any]) -> subprocess.Popen[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [testbed.environments["lancedb"].python, _PROGRAM, json.dumps(job)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=kept)
