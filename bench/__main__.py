"""The program: `python -m bench`, best started by `make bench`.

A full run writes bench/results/full.json, docs/benchmarks.md and docs/benchmarks.svg. With QUICK=1 everything goes to
bench/results/, under the name quick, and the page of the docs stays as it is. With --add the parts that are named are
run again and take their place among the results of the last run; the page says from which run each part is. Ratios are
taken within a part, so that none is ever made of two runs.
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
from bench.arena import Arena
from bench.environments import ROOT, prepare
from bench.facts import facts
from bench.page import page, run_of
from bench.picture import draw
from bench.race import PARTS
from bench.table import overlapped

RESULTS = Path(__file__).parent / "results"


def measured(python: str, scale: scales.Scale, parts: list[str]) -> dict[str, Any]:
    """The results of a run, as they are written."""
    environments = prepare(python)
    began = time.monotonic()
    with Arena(environments) as arena:
        results: dict[str, Any] = {"facts": facts(arena, python), "scale": scale._asdict(), "parts": {}}
        for part in parts:
            print(f"{part} (after {time.monotonic() - began:.0f} s)", file=sys.stderr)
            results["parts"][part] = PARTS[part](arena, scale)
        results["not_run"] = arena.not_run
    results["facts"]["minutes"] = (time.monotonic() - began) / 60
    return results


def added(results: dict[str, Any]) -> dict[str, Any]:
    """The last results of that scale, with the parts of this run in their places, in the order of the race."""
    last = json.loads((RESULTS / f"{results['scale']['name']}.json").read_text(encoding="utf-8"))
    ran = dict.fromkeys(results["parts"], run_of(results["facts"]))
    rows = last["parts"] | results["parts"]
    return {
        "facts": last["facts"],
        "scale": last["scale"],
        "parts": {part: rows[part] for part in PARTS if part in rows},
        "not_run": last["not_run"] | results["not_run"],
        "added": last.get("added", {}) | ran,
    }


def write(results: dict[str, Any]) -> Path:
    """The results, and page and picture made from what was written; gives the page's path."""
    name = results["scale"]["name"]
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / f"{name}.json"
    kept.write_text(json.dumps(_short(results), indent=1) + "\n", encoding="utf-8")
    return make(name)


def make(name: str) -> Path:
    """Page and picture, from the results of that name."""
    results = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    folder, stem = (ROOT / "docs", "benchmarks") if name == "full" else (RESULTS, name)
    draw(results, folder / f"{stem}.svg")
    made = folder / f"{stem}.md"
    made.write_text(page(results, f"{stem}.svg"), encoding="utf-8")
    return made


def _short(value: Any) -> Any:
    """Six digits are more than any of this is worth."""
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    options.add_argument(
        "--python", default=getattr(sys, "_base_executable", sys.executable), help="for all contenders"
    )
    options.add_argument("--only", nargs="+", choices=PARTS, help="run these parts, and write nothing")
    options.add_argument("--add", nargs="+", choices=PARTS, help="run these parts, and put them among the last results")
    options.add_argument(
        "--again", choices=("full", "quick"), help="only make page and picture again, from the results"
    )
    chosen = options.parse_args()
    if chosen.again:
        print(f"wrote {make(chosen.again).relative_to(ROOT)}")
        return 0
    scale = scales.QUICK if os.environ.get("QUICK") else scales.FULL
    results = measured(chosen.python, scale, chosen.only or chosen.add or list(PARTS))
    print(page(results))
    if chosen.add:
        results = added(results)
    if not chosen.only:
        print(f"wrote {write(results).relative_to(ROOT)}", file=sys.stderr)
    return 1 if overlapped(results) else 0


if __name__ == "__main__":
    sys.exit(main())
