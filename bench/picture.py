"""Six small charts of a run. Only this module imports matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_COLOURS = {"floor": "#9aa5b1", "ours": "#1f77b4", "peer": "#e0a458"}


class Chart(NamedTuple):
    """One figure of one measurement, for all candidates."""

    title: str
    part: str
    figure: str
    log: bool


CHARTS = (
    Chart("Uncontended pair: times the raw socket (less is better)", "pair", "times_floor", log=False),
    Chart("100 tasks in one process: pairs/s (more is better)", "fan_out", "pairs_per_s", log=False),
    Chart("8 callers, one lock: worst wait in ms (less is better)", "contended", "wait_max_ms", log=True),
    Chart("Single waiter: lag in ms, p50 (less is better)", "single_waiter", "lag_p50_ms", log=True),
    Chart("Owned streams: commands/s on the server (less is better)", "owner", "commands_per_s", log=True),
    Chart("Streams of a killed pod: s beyond the lease (less is better)", "owner_killed", "takeover_s", log=True),
)


def draw(results: dict[str, Any], file: Path) -> None:
    """Write the charts as SVG."""
    import matplotlib as mpl  # noqa: PLC0415 - an optional package

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "holdfast", "font.size": 8})
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(3, 2, figsize=(11, 9.5), layout="constrained")
    for chart, axis in zip(CHARTS, axes.flat, strict=True):
        _bars(axis, chart, results["parts"].get(chart.part, []))
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _bars(axis: Any, chart: Chart, rows: list[dict[str, Any]]) -> None:
    shown = [row for row in rows if chart.figure in row["figures"]][::-1]
    values = [row["figures"][chart.figure] for row in shown]
    medians = [value.median for value in values]
    spread = [
        [value.median - value.low for value in values],
        [value.high - value.median for value in values],
    ]
    names, colours = [row["candidate"] for row in shown], [_COLOURS[row["role"]] for row in shown]
    axis.barh(names, medians, xerr=spread, color=colours, error_kw={"lw": 0.8, "capsize": 2})
    axis.set_title(chart.title, fontsize=9, loc="left")
    if chart.log:
        axis.set_xscale("log")
    axis.spines[["top", "right"]].set_visible(False)
