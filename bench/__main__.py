"""The program: `python -m bench`, best started by `make bench`.

A full run writes bench/results/full.json (the summary), docs/benchmarks.md and docs/benchmarks.svg. With QUICK=1
everything goes to bench/results/, under the name quick, and the page of the docs stays as it is. With --add the named
measurements run again and replace their results of the last run; the page names the run of each measurement. Ratios are
taken within one measurement, so that no ratio is made of two runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench import scale as scales
from bench import summary
from bench.environments import ROOT, prepare
from bench.machine import facts
from bench.page import page, run_of
from bench.picture import draw
from bench.suite import MEASUREMENTS
from bench.targets import overlapped
from bench.testbed import Testbed

RESULTS = Path(__file__).parent / "results"


def measure(python: str, scale: scales.Scale, parts: list[str]) -> dict[str, Any]:
    """Run the measurements; return the raw results."""
    environments = prepare(python)
    began = time.monotonic()
    with Testbed(environments) as testbed:
        results: dict[str, Any] = {"facts": facts(testbed, python), "scale": scale._asdict(), "parts": {}}
        for part in parts:
            print(f"{part} (after {time.monotonic() - began:.0f} s)", file=sys.stderr)
            results["parts"][part] = MEASUREMENTS[part](testbed, scale)
        results["not_run"] = testbed.not_run
    results["facts"]["minutes"] = (time.monotonic() - began) / 60
    return results


def merged(latest: dict[str, Any]) -> dict[str, Any]:
    """Return the last summary of that scale with the measurements of this run in their places."""
    last = summary.read(RESULTS / f"{latest['scale']['name']}.json")
    ran = dict.fromkeys(latest["parts"], run_of(latest["facts"]))
    rows = last["parts"] | latest["parts"]
    return {
        "facts": last["facts"],
        "scale": last["scale"],
        "parts": {part: rows[part] for part in MEASUREMENTS if part in rows},
        "not_run": last["not_run"] | latest["not_run"],
        "added": last.get("added", {}) | ran,
    }


def make(name: str) -> Path:
    """Make page and picture from the summary of that name; return the path of the page."""
    results = summary.read(RESULTS / f"{name}.json")
    folder, stem = (ROOT / "docs", "benchmarks") if name == "full" else (RESULTS, name)
    draw(results, folder / f"{stem}.svg")
    made = folder / f"{stem}.md"
    made.write_text(page(results, f"{stem}.svg"), encoding="utf-8")
    return made


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    options.add_argument(
        "--python", default=getattr(sys, "_base_executable", sys.executable), help="interpreter of all candidates"
    )
    options.add_argument("--only", nargs="+", choices=MEASUREMENTS, help="run these measurements, and write nothing")
    options.add_argument(
        "--add", nargs="+", choices=MEASUREMENTS, help="run these measurements, and merge them into the last summary"
    )
    options.add_argument("--again", choices=("full", "quick"), help="only make page and picture from the summary")
    chosen = options.parse_args()
    if chosen.again:
        print(f"wrote {make(chosen.again).relative_to(ROOT)}")
        return 0
    scale = scales.QUICK if os.environ.get("QUICK") else scales.FULL
    raw = measure(chosen.python, scale, chosen.only or chosen.add or list(MEASUREMENTS))
    results = summary.summarise(raw)
    print(page(results))
    if not chosen.only:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{scale.name}.raw.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
        summary.write(merged(results) if chosen.add else results, RESULTS / f"{scale.name}.json")
        print(f"wrote {make(scale.name).relative_to(ROOT)}", file=sys.stderr)
    return 1 if overlapped(results) else 0


if __name__ == "__main__":
    sys.exit(main())
