"""How long `build_once` takes when the build exists: it reads one file, without any lock."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

from bench.candidates import DIRECTORY, OURS, Candidate
from bench.environments import ROOT
from bench.testbed import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.scale import Scale
    from bench.testbed import Testbed

_HITS = 2000
_PROGRAM = """
import sys, time, holdfast
hf, store = holdfast.connect(sys.argv[1]), sys.argv[2]
build = lambda staging: (staging / "file").write_text("content")
assert hf.build_once(store, "k", build).fresh
durations = []
for _ in range(int(sys.argv[3])):
    began = time.perf_counter()
    hf.build_once(store, "k", build)
    durations.append(time.perf_counter() - began)
hf.close()
print(sorted(durations)[len(durations) // 2])
"""


def build_once(testbed: Testbed, scale: Scale, urls: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return rows with microseconds: the median hit of a new process, for each round."""
    runs = [Run(Candidate(name, OURS, "", "holdfast", wire=DIRECTORY), [], {}) for name in urls]
    for _ in range(scale.imports):
        for run in runs:
            run.rounds.append({"hit_us": _seconds(testbed, urls[run.candidate.name]) * 1e6})
    return [run.row() for run in runs]


def _seconds(testbed: Testbed, url: str) -> float:
    with tempfile.TemporaryDirectory(dir=testbed.folder) as folder:
        os.mkdir(f"{folder}/leases")
        os.mkdir(f"{folder}/store")
        python = testbed.environments["holdfast"].python
        command = [python, "-c", _PROGRAM, url.format(folder=folder), f"{folder}/store", str(_HITS)]
        return float(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
