"""The program: `python -m bench`, best started by `make bench`.

A full run writes bench/results/full.json (the summary), docs/benchmarks.md and docs/benchmarks.svg. With QUICK=1
everything goes to bench/results/, under the name quick, and the page of the docs stays as it is. With --add the named
measurements run again and replace their results of the last run; the page names the run of each measurement. Ratios are
taken within one measurement, so that no ratio is made of two runs.

With --before REV it compares Holdfast at that commit with the working tree instead, in one interleaved run without any
peer, and exits with 1 unless every row is within its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench import before_after, summary
from bench import scale as scales
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


def compared(chosen: argparse.Namespace, options: argparse.ArgumentParser) -> int:
    """Compare a commit with the working tree, and print the table or the figures; return the exit code."""
    length = before_after.QUICK if os.environ.get("QUICK") else before_after.FULL
    workloads = chosen.workloads or before_after.WORKLOADS
    try:
        with before_after.unpacked(chosen.before) as before:
            found = before_after.compare(before, before_after.working_tree(), length, workloads)
    except before_after.NoSuchVersion as error:
        options.error(str(error))
    at_most = chosen.at_most or before_after.AT_MOST
    within = before_after.judge(found, at_most, chosen.memory_at_most or at_most)
    print(json.dumps(found, indent=1) if chosen.json else before_after.report(found))
    return 0 if within else 1


def _arguments() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--python", help="interpreter of all candidates; default: the base of this environment")
    some: dict[str, Any] = {"nargs": "+", "choices": MEASUREMENTS, "metavar": "MEASUREMENT"}
    options.add_argument("--only", **some, help=f"run these, and write nothing: {', '.join(MEASUREMENTS)}")
    options.add_argument("--add", **some, help="run these, and merge them into the last summary")
    options.add_argument("--again", choices=("full", "quick"), help="only make page and picture from the summary")
    pair = options.add_argument_group("compare two versions")
    pair.add_argument("--before", metavar="REV", help="compare this commit with the working tree")
    default = before_after.AT_MOST
    pair.add_argument("--at-most", type=float, metavar="RATIO", help=f"limit of after / before; default: {default}")
    pair.add_argument("--memory-at-most", type=float, metavar="RATIO", help="limit for memory; default: as --at-most")
    pair.add_argument("--workloads", nargs="+", choices=before_after.WORKLOADS, help="compare only these workloads")
    pair.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")
    return options


def main() -> int:
    options = _arguments()
    chosen = options.parse_args()
    if chosen.before is not None:
        if chosen.python or chosen.only or chosen.add or chosen.again:
            options.error(
                "--before compares two versions in this interpreter, without --python, --only, --add, --again"
            )
        return compared(chosen, options)
    if chosen.at_most or chosen.memory_at_most or chosen.workloads or chosen.json:
        options.error("--at-most, --memory-at-most, --workloads and --json belong to --before REV")
    if chosen.again:
        print(f"wrote {make(chosen.again).relative_to(ROOT)}")
        return 0
    scale = scales.QUICK if os.environ.get("QUICK") else scales.FULL
    python = chosen.python or getattr(sys, "_base_executable", sys.executable)
    raw = measure(python, scale, chosen.only or chosen.add or list(MEASUREMENTS))
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
