"""The report of a campaign: one page of Markdown, and the same data as JSON.

Every figure comes from the statistics. The files name no machine and no path, and state how to repeat the run.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from chaos import plots
from chaos.checks import INVARIANTS
from chaos.known_limits import KNOWN_LIMITS
from chaos.mutation_score import UNMODIFIED
from chaos.rounds import WORKLOADS
from chaos.schedule import KINDS
from tests.support.fault_windows import MACHINE, STOPPED_IN_GATE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from chaos.statistics import Statistics

PAGE, DATA = "README.md", "campaign.json"


def write(statistics: Statistics, folder: Path) -> None:
    """Write the page, the data and the plots into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = statistics.summary()
    (folder / DATA).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    drawn = plots.draw(statistics, folder) if plots.available() else []
    (folder / PAGE).write_text("\n".join(_page(statistics, summary, drawn)) + "\n", encoding="utf-8")


def _page(statistics: Statistics, summary: dict[str, Any], drawn: list[tuple[str, str]]) -> Iterator[str]:
    yield "# The fault campaign"
    yield ""
    yield _verdict(statistics, summary)
    yield ""
    yield f"Repeat it with `{_repeat(statistics)}`. The same seed gives the same schedule of faults;"
    yield f"the interleaving of the processes differs. The figures are in [{DATA}]({DATA})."
    yield ""
    yield from _table(("", ""), _facts(statistics, summary))
    yield from _pictures(drawn)
    yield "## Invariants"
    yield ""
    yield from _table(
        ("", "invariant", "violations"),
        ((promise, says, summary["violations"][promise]) for promise, says in INVARIANTS.items()),
    )
    yield from _shown(statistics)
    yield "## Known limits"
    yield ""
    yield "No engine promises these; the campaign recognised each by its cause:"
    yield ""
    yield from _table(
        ("limit", "description", "times"),
        ((one.name, one.says, statistics.expected[one.name]) for one in KNOWN_LIMITS),
    )
    yield "## Faults"
    yield ""
    yield from _table(
        ("fault", "description", "times"),
        [
            *((kind.name, kind.says, statistics.faults[kind.name]) for kind in KINDS.values()),
            (
                STOPPED_IN_GATE,
                "a fault above stopped a process inside the gate of SQLite, which blocks all others",
                statistics.faults[STOPPED_IN_GATE],
            ),
            (
                MACHINE,
                "a process did not run for 0.25 s, or a fifth of its ttl: busy machine, or a fault above",
                statistics.faults[MACHINE],
            ),
        ],
    )
    yield from _not_run(statistics)
    yield "## Times"
    yield ""
    yield from _times(summary)
    yield from _mutants(statistics)
    yield "## Workloads"
    yield ""
    yield from _table(
        ("workload", "description", "rounds"),
        (
            (name, work.says, sum(count for what, count in statistics.rounds.items() if what.endswith(f"/{name}")))
            for name, work in WORKLOADS.items()
        ),
    )


def _repeat(statistics: Statistics) -> str:
    minutes = statistics.wanted_minutes or max(1, round(statistics.seconds / 60))
    hunt = max((score.rounds for score in statistics.scores.values()), default=0)
    return f"make chaos MINUTES={minutes:g} SEED={statistics.seed}" + (f" HUNT={hunt}" if hunt else "")


def _mutants(statistics: Statistics) -> Iterator[str]:
    yield "## Mutants"
    yield ""
    yield "The campaign tests itself first. Each mutant is the library with one mistake, and one checker must catch it."
    yield f"The unmodified client passed {statistics.passed_unmodified} rounds like theirs."
    if statistics.scores:
        yield "The last column is about ordinary rounds of the campaign, which were not made for a mutant: in how many"
        yield "of those that can have the mistake it was caught. A checker reported the unmodified client in"
        yield f"{_score(statistics, UNMODIFIED)} such rounds."
    yield ""
    heads = ("mutant", "caught by", "after", "in a round of")
    yield from _table(
        (*heads, "ordinary rounds") if statistics.scores else heads,
        (
            (
                kill.mutant.name,
                kill.mutant.caught_by if kill.killed else f"**not caught** {kill.not_run}".strip(),
                f"{kill.seconds:.1f} s",
                f"{kill.mutant.round.engine}, {kill.mutant.round.face}, {', '.join(kill.mutant.round.kinds)}",
                *([_score(statistics, kill.mutant.name)] if statistics.scores else []),
            )
            for kill in statistics.kills
        ),
    )


def _score(statistics: Statistics, name: str) -> str:
    score = statistics.scores.get(name)
    return f"{score.caught} of {score.rounds}" if score is not None else ""


def _verdict(statistics: Statistics, summary: dict[str, Any]) -> str:
    broken = sum(summary["violations"].values())
    alive = sum(not kill.killed and not kill.not_run for kill in statistics.kills)
    outcome = "every invariant held" if not broken else f"**{broken} violations**"
    caught = "every mutant was caught" if not alive else f"**{alive} mutants were not caught**"
    if not statistics.kills:
        caught = "**no mutant was run**"
    return (
        f"{summary['grants']['total']:,} grants under {sum(statistics.faults[kind] for kind in KINDS):,} faults: "
        f"{outcome}, and {caught}."
    )


def _facts(statistics: Statistics, summary: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    yield "length", f"{summary['minutes']} minutes, {statistics.rounds.total()} rounds"
    yield "seed", statistics.seed
    yield "interpreter", summary["python"]
    yield "engines and faces", ", ".join(sorted({what.rpartition("/")[0] for what in statistics.rounds}))
    yield "not covered", ", ".join(statistics.not_covered) or "nothing: every engine, face and workload was run"
    yield "grants", f"{statistics.grants.total():,}"
    yield "leases lost, and reported", f"{statistics.losses:,}"
    yield "most leases held at once by one process", f"{statistics.most_held:,}"
    yield "writes", f"{statistics.writes['accepted']:,} accepted, {statistics.writes['refused']:,} refused by the guard"
    yield "longest stale work", f"{summary['largest_stale_work_ms']:,} ms"
    checked = f"{summary['largest_stale_work_with_checks_ms']:,} ms, where the server kept its data and its clock"
    yield "the same, of a holder that checks its lease before each step", checked
    yield "worst wake-up without a fault", f"{summary['worst_wake_up_ms']:,} ms"
    if statistics.kills:
        killed = sum(kill.killed for kill in statistics.kills)
        yield "mutants caught in the self-test", f"{killed} of {len(statistics.kills)}"
    if statistics.scores:
        measured = [score for score in statistics.scores.values() if score.rounds and score.mutant != UNMODIFIED]
        ever = sum(score.caught > 0 for score in measured)
        yield "mutants caught in ordinary rounds, too", f"{ever} of {len(measured)}"


def _pictures(drawn: list[tuple[str, str]]) -> Iterator[str]:
    for file, says in drawn:
        yield f"![{says}]({file})"
        yield ""


def _shown(statistics: Statistics) -> Iterator[str]:
    for promise, found in statistics.shown.items():
        for text in found:
            yield f"{promise}:"
            yield ""
            yield "```text"
            yield text
            yield "```"
            yield ""


def _not_run(statistics: Statistics) -> Iterator[str]:
    if statistics.not_run:
        reasons = "; ".join(f"{why} ({count} times)" for why, count in sorted(statistics.not_run.items()))
        yield f"Scheduled, and not run: {reasons}."
        yield ""


def _times(summary: dict[str, Any]) -> Iterator[str]:
    def rows(group: str) -> Iterator[tuple[object, ...]]:
        for what, spread in summary[group].items():
            if spread["count"]:
                yield what, f"{spread['count']:,}", spread["p50"], spread["p99"], spread["worst"]

    heads = ("count", "p50", "p99", "worst")
    yield "Milliseconds from a release to the next grant, without a fault:"
    yield ""
    yield from _table(("engine and face", *heads), rows("wake_up_ms"))
    yield "Milliseconds from a request to the grant, with all faults:"
    yield ""
    yield from _table(("engine and face", *heads), rows("wait_ms"))
    yield "Milliseconds of stale work (after another worker had the lease, and before its holder knew), by cause. Half"
    yield "of the sections never check their lease; only the guard stops those."
    yield ""
    yield from _table(("cause", *heads), rows("stale_work_ms"))


def _table(heads: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"
    yield ""
