"""The plots of a campaign: holders and faults over time, and latencies.

A plot shows the statistics and nothing else. matplotlib is imported when the first plot is drawn.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from chaos.rounds import FACES
from chaos.schedule import KINDS
from tests.support.fault_windows import ALL_WORKERS
from tests.support.places import ENGINES

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.statistics import Span, Statistics, Timeline

_HELD = "#2b8a57"
_REFUSED = "#c1121f"
_PALETTE = ("#d1495b", "#edae49", "#7b6fb0", "#30638e", "#9c6644", "#00798c", "#b5838d", "#6c757d")
_WHERE = tuple(f"{engine}/{face}" for engine in ENGINES for face in FACES)
# A light and a dark one for each engine.
_HUES = (
    *("#98c1d9", "#3d5a80", "#a7c957", "#386641", "#cdb4db", "#6a4c93"),
    *("#f4a261", "#bc4749", "#ffd166", "#b08900", "#adb5bd", "#495057"),
)
_COLOURS = dict(zip(_WHERE, _HUES, strict=True))


def available() -> bool:
    return find_spec("matplotlib") is not None


def draw(statistics: Statistics, folder: Path) -> list[tuple[str, str]]:
    """Write the plots; return their file names and descriptions."""
    plots = _pyplot()
    made = []
    for engine, line in sorted(statistics.timelines.items()):
        file = f"timeline-{engine}.png"
        _timeline(plots, line, folder / file)
        made.append((file, f"Holders and faults of the round {line.round}"))
    _latencies(plots, statistics, folder / "latencies.png")
    made.append(("latencies.png", "Wake-ups after a release, and stale work"))
    return made


def _pyplot() -> Any:
    import_module("matplotlib").use("Agg")
    plots = import_module("matplotlib.pyplot")
    plots.rcParams.update(
        {
            "figure.dpi": 110,
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
        }
    )
    return plots


def _timeline(plots: Any, line: Timeline, file: Path) -> None:
    """Draw one row for each worker, and one for the faults that affect all workers."""
    rows = {worker: place for place, worker in enumerate(reversed((ALL_WORKERS, *line.workers)))}
    figure, axes = plots.subplots(figsize=(13, 1.3 + 0.75 * len(rows)))
    seen = {fault.kind for fault in line.faults}
    # By its index among all kinds, so that a fault looks the same in every plot.
    kinds = [(place, kind) for place, kind in enumerate(KINDS) if kind in seen]
    colours = {kind: _PALETTE[place % len(_PALETTE)] for place, kind in kinds}
    hatches = {kind: ("", "///", "...")[place // len(_PALETTE)] for place, kind in kinds}
    for fault in line.faults:
        row = rows.get(fault.worker, rows[ALL_WORKERS])
        start_s, length_s = _visible(fault)
        axes.barh(
            row, length_s, left=start_s, height=0.78, color=colours[fault.kind], hatch=hatches[fault.kind],
            alpha=0.38, edgecolor=colours[fault.kind], linewidth=0.8,
        )  # fmt: skip
    for claim in line.claims:
        holder = claim.worker.split(".")[0]
        if holder in rows:
            length_s = max(claim.end_s - claim.start_s, 0.012)
            axes.barh(rows[holder], length_s, left=claim.start_s, height=0.34, color=_HELD)
    for refusal in line.refused:
        axes.plot(refusal.start_s, rows[refusal.worker], "x", color=_REFUSED, markersize=9, markeredgewidth=2.2)
    axes.set_yticks(list(rows.values()), [worker or "all workers" for worker in rows])
    axes.set_xlim(0, line.seconds)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel("seconds")
    axes.set_title(f"{line.round}: holders and faults")
    axes.grid(axis="x", alpha=0.25)
    _legend(plots, axes, colours, hatches, refused=bool(line.refused))
    figure.savefig(file, bbox_inches="tight")
    plots.close(figure)


def _visible(fault: Span) -> tuple[float, float]:
    """Return start and length of a fault; a fault without a length gets one, to be visible."""
    return fault.start_s, max(fault.end_s - fault.start_s, 0.05)


def _legend(plots: Any, axes: Any, colours: dict[str, str], hatches: dict[str, str], *, refused: bool) -> None:
    patch = import_module("matplotlib.patches").Patch
    handles = [patch(color=_HELD, label="holds the lease")]
    if refused:
        line = import_module("matplotlib.lines").Line2D
        handles.append(
            line(
                [],
                [],
                color=_REFUSED,
                marker="x",
                linestyle="",
                markersize=9,
                markeredgewidth=2.2,
                label="late write, refused",
            )
        )
    handles += [
        patch(facecolor=colour, edgecolor=colour, hatch=hatches[kind], alpha=0.38, label=kind)
        for kind, colour in colours.items()
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=9)
    plots.tight_layout()


def _plain(value: float, _place: int) -> str:
    return f"{value:g}"


def _latencies(plots: Any, statistics: Statistics, file: Path) -> None:
    figure, (left, right) = plots.subplots(1, 2, figsize=(13, 4.6))
    for where in _WHERE:
        values = sorted(statistics.wake_ups_ms.get(where, ()))
        if values:
            scores = [(place + 1) / len(values) for place in range(len(values))]
            left.step(
                values, scores, where="post", label=f"{where} ({len(values)})", color=_COLOURS[where], linewidth=1.8
            )
    left.set_xscale("log")
    left.xaxis.set_major_formatter(_plain)
    left.set_ylim(0, 1.02)
    left.set_xlabel("milliseconds from a release to the next grant")
    left.set_ylabel("share of hand-overs")
    left.set_title("Wake-ups without a fault")
    left.grid(alpha=0.25)
    if any(statistics.wake_ups_ms.values()):
        left.legend(frameon=False, fontsize=9)

    causes = sorted(statistics.stale_work_ms, key=lambda cause: max(statistics.stale_work_ms[cause]))
    for row, cause in enumerate(causes):
        values = [max(value, 0.1) for value in statistics.stale_work_ms[cause]]
        right.plot(values, [row] * len(values), "|", color=_REFUSED, markersize=14, alpha=0.6)
        right.annotate(f"{max(values):.0f}", (max(values), row), xytext=(7, -3), textcoords="offset points", fontsize=8)
    right.set_yticks(range(len(causes)), [f"{cause} ({len(statistics.stale_work_ms[cause])})" for cause in causes])
    right.set_ylim(-0.6, max(len(causes), 1) - 0.4)
    right.set_xscale("log")
    right.xaxis.set_major_formatter(_plain)
    right.set_xlabel("milliseconds of work after another worker had the lease")
    right.set_title("Stale work by cause")
    right.grid(axis="x", alpha=0.25)
    figure.tight_layout()
    figure.savefig(file, bbox_inches="tight")
    plots.close(figure)
