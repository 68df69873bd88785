"""The report of a campaign: one page of Markdown, and the same as JSON.

The rule: every figure comes from the tally. The files name no machine and no path, and say how to repeat the run.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from chaos import pictures
from chaos.expectations import EXPECTATIONS
from chaos.judge import PROMISES
from chaos.ordinary import RIGHT
from chaos.rounds import WORKLOADS
from chaos.schedule import KINDS
from tests.support.windows import IN_THE_GATE, MACHINE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from chaos.tally import Tally

PAGE, DATA = "README.md", "campaign.json"


def write(tally: Tally, folder: Path) -> None:
    """Write the page, the data and the pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = tally.summary()
    (folder / DATA).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    drawn = pictures.draw(tally, folder) if pictures.available() else []
    (folder / PAGE).write_text("\n".join(_page(tally, summary, drawn)) + "\n", encoding="utf-8")


def _page(tally: Tally, summary: dict[str, Any], drawn: list[tuple[str, str]]) -> Iterator[str]:
    yield "# The fault campaign"
    yield ""
    yield _verdict(tally, summary)
    yield ""
    yield f"Repeat it with `{_repeat(tally)}`. The same seed gives the same schedule of faults;"
    yield f"how the processes interleave is the machine's. The figures are in [{DATA}]({DATA})."
    yield ""
    yield from _table(("", ""), _facts(tally, summary))
    yield from _pictures(drawn)
    yield "## Promises"
    yield ""
    yield from _table(
        ("", "promise", "violations"),
        ((promise, says, summary["violations"][promise]) for promise, says in PROMISES.items()),
    )
    yield from _shown(tally)
    yield "## Expected, by name"
    yield ""
    yield "What cannot be promised did happen, and was recognised by its cause:"
    yield ""
    yield from _table(
        ("limit", "what it says", "times"), ((one.name, one.says, tally.expected[one.name]) for one in EXPECTATIONS)
    )
    yield "## Faults"
    yield ""
    yield from _table(
        ("fault", "what it is", "times"),
        [
            *((kind.name, kind.says, tally.faults[kind.name]) for kind in KINDS.values()),
            (
                IN_THE_GATE,
                "one of the above stopped a process inside the gate of SQLite, which keeps everybody out",
                tally.faults[IN_THE_GATE],
            ),
            (
                MACHINE,
                "a process was not run for 0.25 s, or a fifth of its ttl: busy machine, or one of the above",
                tally.faults[MACHINE],
            ),
        ],
    )
    yield from _not_run(tally)
    yield "## Times"
    yield ""
    yield from _times(summary)
    yield from _mutants(tally)
    yield "## What was played"
    yield ""
    yield from _table(
        ("workload", "what it is", "rounds"),
        (
            (name, work.says, sum(count for what, count in tally.rounds.items() if what.endswith(f"/{name}")))
            for name, work in WORKLOADS.items()
        ),
    )


def _repeat(tally: Tally) -> str:
    minutes = tally.wanted_minutes or max(1, round(tally.seconds / 60))
    hunt = max((share.played for share in tally.shares.values()), default=0)
    return f"make chaos MINUTES={minutes:g} SEED={tally.seed}" + (f" HUNT={hunt}" if hunt else "")


def _mutants(tally: Tally) -> Iterator[str]:
    yield "## Broken clients"
    yield ""
    yield "The campaign tests itself first: each of these is the library with one mistake, and is to be caught by the"
    yield f"checker that stands for it. The right client was acquitted in {tally.acquitted} rounds like theirs."
    if tally.shares:
        yield "The last column is about the campaign's own rounds, which were made for nobody: in how many of them a"
        yield "client with this mistake was accused, of those that were tried where the mistake exists. The right"
        yield f"client was accused in {_share(tally, RIGHT)} such rounds."
    yield ""
    heads = ("mutant", "caught by", "after", "in a round of")
    yield from _table(
        (*heads, "ordinary rounds") if tally.shares else heads,
        (
            (
                kill.mutant.name,
                kill.mutant.caught_by if kill.killed else f"**nobody** {kill.not_run}".strip(),
                f"{kill.seconds:.1f} s",
                f"{kill.mutant.round.engine}, {kill.mutant.round.face}, {', '.join(kill.mutant.round.kinds)}",
                *([_share(tally, kill.mutant.name)] if tally.shares else []),
            )
            for kill in tally.kills
        ),
    )


def _share(tally: Tally, name: str) -> str:
    share = tally.shares.get(name)
    return f"{share.caught} of {share.played}" if share is not None else ""


def _verdict(tally: Tally, summary: dict[str, Any]) -> str:
    broken = sum(summary["violations"].values())
    alive = sum(not kill.killed and not kill.not_run for kill in tally.kills)
    outcome = "no promise was broken" if not broken else f"**{broken} violations**"
    caught = "every broken client was caught" if not alive else f"**{alive} broken clients were not caught**"
    if not tally.kills:
        caught = "**no broken client was played**"
    return (
        f"{summary['grants']['total']:,} grants under {sum(tally.faults[kind] for kind in KINDS):,} faults: "
        f"{outcome}, and {caught}."
    )


def _facts(tally: Tally, summary: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    yield "length", f"{summary['minutes']} minutes, {tally.rounds.total()} rounds"
    yield "seed", tally.seed
    yield "interpreter", summary["python"]
    yield "engines and faces", ", ".join(sorted({what.rpartition("/")[0] for what in tally.rounds}))
    yield "not covered", ", ".join(tally.not_covered) or "nothing: every engine, face and workload was played"
    yield "grants", f"{tally.grants.total():,}"
    yield "leases lost, and told", f"{tally.losses:,}"
    yield "most leases held at once by one process", f"{tally.most_held:,}"
    yield "writes", f"{tally.writes['accepted']:,} accepted, {tally.writes['refused']:,} refused by the guard"
    yield "largest zombie time", f"{summary['largest_zombie_ms']:,} ms"
    asked = f"{summary['largest_zombie_of_one_that_asks_ms']:,} ms, where the server kept its data and its clock"
    yield "the same, of a holder that asks before each step", asked
    yield "worst wake-up, where nothing was broken", f"{summary['worst_wake_up_ms']:,} ms"
    if tally.kills:
        killed = sum(kill.killed for kill in tally.kills)
        yield "broken clients caught in the self-test", f"{killed} of {len(tally.kills)}"
    if tally.shares:
        met = [share for share in tally.shares.values() if share.played and share.mutant != RIGHT]
        ever = sum(share.caught > 0 for share in met)
        yield "broken clients caught in ordinary rounds, too", f"{ever} of {len(met)}"


def _pictures(drawn: list[tuple[str, str]]) -> Iterator[str]:
    for file, says in drawn:
        yield f"![{says}]({file})"
        yield ""


def _shown(tally: Tally) -> Iterator[str]:
    for promise, found in tally.shown.items():
        for text in found:
            yield f"{promise}:"
            yield ""
            yield "```text"
            yield text
            yield "```"
            yield ""


def _not_run(tally: Tally) -> Iterator[str]:
    if tally.not_run:
        told = "; ".join(f"{why} ({count} times)" for why, count in sorted(tally.not_run.items()))
        yield f"Drawn, and not run: {told}."
        yield ""


def _times(summary: dict[str, Any]) -> Iterator[str]:
    def rows(group: str) -> Iterator[tuple[object, ...]]:
        for what, spread in summary[group].items():
            if spread["count"]:
                yield what, f"{spread['count']:,}", spread["p50"], spread["p99"], spread["worst"]

    heads = ("count", "p50", "p99", "worst")
    yield "Milliseconds from a release to the next one's grant, where nothing was broken:"
    yield ""
    yield from _table(("engine and face", *heads), rows("wake_up_ms"))
    yield "Milliseconds from asking to the grant, with everything that was broken:"
    yield ""
    yield from _table(("engine and face", *heads), rows("wait_ms"))
    yield "Milliseconds of code that ran after the lease was another's and before its holder knew, by cause. Half of"
    yield "the sections never ask whether they still hold the lease; only the guard stops those."
    yield ""
    yield from _table(("cause", *heads), rows("zombie_ms"))


def _table(heads: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"
    yield ""
