"""From the results of a run to the summary that is committed.

A run writes two files: `results/NAME.raw.json` with every round, which git ignores, and `results/NAME.json`, the
summary: for each candidate the number of rounds, and median, least and most of every figure that the page, a target or
a chart needs. Page and picture are made from the summary alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bench.page import SECTIONS
from bench.picture import CHARTS
from bench.stats import Spread
from bench.targets import TARGETS

if TYPE_CHECKING:
    from pathlib import Path

_WIDTH = 120
# The page marks a run with two holders; targets compare candidates with equally many streams.
_ALWAYS = ("overlaps", "streams")


def needed(part: str) -> set[str]:
    """Return the figures of this measurement that the page, a target or a chart uses."""
    targets = (target.figure for target in TARGETS if target.part == part)
    charts = (chart.figure for chart in CHARTS if chart.part == part)
    return {*SECTIONS[part].columns, *targets, *charts, *_ALWAYS}


def summarise(results: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of raw results."""
    return results | {"parts": {part: [_row(part, row) for row in rows] for part, rows in results["parts"].items()}}


def _row(part: str, row: dict[str, Any]) -> dict[str, Any]:
    wanted = needed(part)
    figures = {key: Spread(*map(_short, value)) for key, value in row["figures"].items() if key in wanted}
    return row | {"rounds": len(row["rounds"]), "figures": figures}


def _short(value: float) -> float:
    """Round to six digits, which is more than any figure is worth."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def read(file: Path) -> dict[str, Any]:
    """Return a summary, with a `Spread` for each figure."""
    summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    for rows in summary["parts"].values():
        for row in rows:
            row["figures"] = {key: Spread(*value) for key, value in row["figures"].items()}
    return summary


def write(summary: dict[str, Any], file: Path) -> None:
    """Write a summary: one block of lines per candidate, with figures as [median, least, most]."""
    head = json.dumps({key: value for key, value in summary.items() if key != "parts"}, indent=1)
    parts = [
        f'  "{part}": [\n' + ",\n".join(_block(row) for row in rows) + "\n  ]"
        for part, rows in summary["parts"].items()
    ]
    body = ",\n".join(parts)
    file.write_text(f'{head[:-2]},\n "parts": {{\n{body}\n }}\n}}\n', encoding="utf-8")


def _block(row: dict[str, Any]) -> str:
    facts = json.dumps({key: value for key, value in row.items() if key != "figures"})
    lines = [f'   {facts[:-1]}, "figures": {{']
    items = [f"{json.dumps(key)}: {json.dumps(list(value))}" for key, value in row["figures"].items()]
    line = ""
    for number, item in enumerate(items):
        text = item + ("," if number < len(items) - 1 else "")
        if line and len(line) + len(text) + 5 > _WIDTH:
            lines.append(f"    {line}")
            line = ""
        line = f"{line} {text}".strip()
    return "\n".join([*lines, *([f"    {line}"] if line else []), "   }}"])
