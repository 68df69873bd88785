"""How long it takes to import, and to make a client, in a fresh interpreter with compiled files."""

from __future__ import annotations

import os
import random
import subprocess
from typing import TYPE_CHECKING, Any

from bench.candidates import OURS, PEER, Candidate
from bench.environments import ROOT
from bench.testbed import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.scale import Scale
    from bench.testbed import Testbed

_PROGRAM = "import sys, time; file = sys.argv[1]; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


def imports(testbed: Testbed, scale: Scale, statements: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """Return rows with milliseconds. Modules that load on first use cost time then, so some rows also make a client."""
    runs = [Run(_named(name, environment), [], {}) for name, (environment, _) in statements.items()]
    runs = [run for run in runs if not testbed.environments[run.candidate.environment].why_not]
    for number in range(-1, scale.imports):
        for run in random.sample(runs, len(runs)):
            taken = _seconds(testbed, run.candidate.environment, statements[run.candidate.name][1])
            run.rounds.extend([{"import_ms": taken * 1e3}] * (number >= 0))
    return [run.row() for run in runs]


def _named(name: str, environment: str) -> Candidate:
    return Candidate(name, OURS if environment == "holdfast" else PEER, "", environment)


def _seconds(testbed: Testbed, environment: str, statement: str) -> float:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    file = os.path.join(testbed.folder, "import.db")
    command = [testbed.environments[environment].python, "-c", _PROGRAM.format(statement), file]
    return float(subprocess.run(command, env=kept, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
