"""Two versions of Holdfast compared in one interleaved run: `python -m bench --before REV`.

`before` is the source of that commit, unpacked into a temporary folder; `after` is the working tree. Both run in the
interpreter of this program, in processes of their own, on the same server and disk, each with its own database, file
and folder. Batches alternate (before after, after before, ...), so that each ratio is one of two neighbours, and each
row uses several pairs of processes, because two processes of the same code also differ by a few percent.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench import candidates as known
from bench.environments import ROOT
from bench.page import table
from bench.stats import nested_median, ratios
from bench.testbed import Testbed, Worker, WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.candidates import Candidate

BEFORE, AFTER = "before", "after"
WITHIN, ABOVE, UNCLEAR = "within", "above", "unclear"
REDIS, MEMORY, SQLITE, FILES = "Redis", "memory", "SQLite", "files"
AT_MOST = 1.03
_READY_S = 60.0
_DATABASES = {BEFORE: 1, AFTER: 2}


class NoSuchVersion(Exception):
    """The text says which commit is missing, and what to give instead."""


class Length(NamedTuple):
    """How long a comparison runs: pairs of processes per row, batches of each process, and seconds of a batch."""

    processes: int
    batches: int
    batch_s: float
    leases: int
    repeats: int


FULL = Length(processes=5, batches=24, batch_s=0.05, leases=2000, repeats=5)
QUICK = Length(processes=2, batches=6, batch_s=0.02, leases=300, repeats=1)


class Tree(NamedTuple):
    """One version: what it is called, and the folder with its packages."""

    name: str
    packages: Path


class Timed(NamedTuple):
    """A row of the table: an operation that is repeated in batches."""

    workload: str
    engine: str
    candidate: Candidate
    operation: str


LEASE, QUEUE, LIMIT, MEMORY_EACH = "lease", "queue", "limit", "memory"
_TITLES = {
    LEASE: "lease: acquire and release",
    QUEUE: "queue: publish, receive and ack",
    LIMIT: "limit: an allowed hit",
    MEMORY_EACH: "memory per held lease",
}
WORKLOADS = tuple(_TITLES)
_TURN = known.HOLDFAST._replace(adapter="bench.adapters.ours_queue:blocking")
_PAIRS, _DECISIONS = "pairs", "decisions"
ROWS = (
    Timed(LEASE, REDIS, known.HOLDFAST, _PAIRS),
    Timed(LEASE, f"{REDIS}, asyncio", known.HOLDFAST_ASYNCIO, _PAIRS),
    Timed(LEASE, MEMORY, known.HOLDFAST, _PAIRS),
    Timed(LEASE, SQLITE, known.HOLDFAST, _PAIRS),
    Timed(LEASE, FILES, known.HOLDFAST, _PAIRS),
    Timed(QUEUE, REDIS, _TURN, _PAIRS),
    Timed(QUEUE, MEMORY, _TURN, _PAIRS),
    Timed(QUEUE, SQLITE, _TURN, _PAIRS),
    Timed(LIMIT, REDIS, known.LIMIT[0], _DECISIONS),
    Timed(LIMIT, MEMORY, known.LIMIT[0], _DECISIONS),
)
_HOLDER = known.HOLDFAST._replace(ttl=60)


@contextmanager
def unpacked(revision: str) -> Iterator[Tree]:
    """Unpack the source of a commit into a temporary folder. Raises `NoSuchVersion`."""
    commit = _git("rev-parse", "--verify", "--quiet", "--short", f"{revision}^{{commit}}")
    if commit.returncode:
        why = commit.stderr.strip() or "git knows no such commit"
        raise NoSuchVersion(
            f"cannot compare with {revision!r}: {why}. Give a commit, tag or branch of this repository."
        )
    name = commit.stdout.strip()
    with tempfile.TemporaryDirectory(prefix="hf-before-") as made:
        folder = Path(made)
        archive = folder / "source.tar"
        packed = _git("archive", "--format=tar", f"--output={archive}", name, "src")
        if packed.returncode:
            raise NoSuchVersion(f"cannot compare with {revision!r}: {packed.stderr.strip()}")
        with tarfile.open(archive) as source:
            source.extractall(folder, filter="data")
        yield Tree(name, folder / "src")


def working_tree() -> Tree:
    """Return the version in this working tree, with its uncommitted changes."""
    changed = bool(_git("status", "--porcelain", "--", "src").stdout.strip())
    commit = _git("rev-parse", "--short", "HEAD").stdout.strip() or "no commit"
    return Tree(f"{commit} with changes" if changed else commit, ROOT / "src")


def compare(before: Tree, after: Tree, length: Length, workloads: Sequence[str] = WORKLOADS) -> dict[str, Any]:
    """Run every row of these workloads with both versions; return their figures."""
    began = time.monotonic()
    with Testbed({}) as testbed:
        comparison = _Comparison(testbed, {BEFORE: before, AFTER: after}, length)
        for row in ROWS:
            if row.workload in workloads:
                comparison.attempt(f"{_TITLES[row.workload]}, {row.engine}", partial(comparison.timed, row))
        if MEMORY_EACH in workloads:
            comparison.attempt(_TITLES[MEMORY_EACH], comparison.memory)
    return {
        "before": before.name,
        "after": after.name,
        "python": sys.version.split()[0],
        "server": testbed.server.kind,
        "length": length._asdict(),
        "seconds": round(time.monotonic() - began, 1),
        "rows": comparison.rows,
        "not_run": comparison.not_run,
    }


def judge(found: dict[str, Any], at_most: float, memory_at_most: float) -> bool:
    """Give each row a verdict; return whether all rows ran and are within their limits.

    A row is within its limit if the ratios of CPU time and of wall time are, and above it if one of them is with its
    whole range. Between the two the run was too short or the machine too busy to tell, which is no success.
    """
    for row in found["rows"]:
        row["limit"] = memory_at_most if row["workload"] == MEMORY_EACH else at_most
        judged = [row] if row["workload"] == MEMORY_EACH else [row["cpu"], row["wall"]]
        if all(each["ratio"] <= row["limit"] for each in judged):
            row["verdict"] = WITHIN
        else:
            row["verdict"] = ABOVE if any(each["range"][0] > row["limit"] for each in judged) else UNCLEAR
    return not found["not_run"] and all(row["verdict"] == WITHIN for row in found["rows"])


def report(found: dict[str, Any]) -> str:
    """Return the judged comparison as text."""
    timed = [row for row in found["rows"] if row["workload"] != MEMORY_EACH]
    held = [row for row in found["rows"] if row["workload"] == MEMORY_EACH]
    length = found["length"]
    how = (
        f"CPython {found['python']}, {found['server']}; {length['processes']} pairs of processes for each row, with"
        f" {length['batches']} alternating batches of {length['batch_s'] * 1e3:.0f} ms; {found['seconds']:.0f} s."
        " Ratios are after / before: the median over all pairs of neighbouring batches, and its 95 % range. CPU time is"
        " that of client and server. `best` is the ratio of the fastest batches."
    )
    blocks = [f"# Holdfast {found['before']} and {found['after']}", how]
    heads = ("", "engine", "CPU us, before", "after", "ratio", "wall us, before", "after", "ratio", "best", "limit", "")
    if timed:
        blocks.append(table(heads, [_timed_line(row) for row in timed]))
    if held:
        heads = (_TITLES[MEMORY_EACH], "bytes, before", "after", "ratio", "limit", "")
        blocks.append(table(heads, [_held_line(row) for row in held]))
    blocks += [f"**Not run: {title}: {why}**" for title, why in found["not_run"].items()]
    counts = [f"{sum(row['verdict'] == each for row in found['rows'])} {each}" for each in (WITHIN, ABOVE, UNCLEAR)]
    blocks.append(f"{len(found['rows'])} rows: {', '.join(counts)}.")
    return "\n\n".join(blocks)


def _timed_line(row: dict[str, Any]) -> tuple[str, ...]:
    cells = [
        cell
        for time_of in (row["cpu"], row["wall"])
        for cell in (f"{time_of[BEFORE]:.2f}", f"{time_of[AFTER]:.2f}", _ratio(time_of))
    ]
    return (_TITLES[row["workload"]], row["engine"], *cells, f"{row['wall']['best']:.3f}", *_verdict(row))


def _held_line(row: dict[str, Any]) -> tuple[str, ...]:
    return (row["engine"], f"{row[BEFORE]:,.0f}", f"{row[AFTER]:,.0f}", _ratio(row), *_verdict(row))


def _ratio(found: dict[str, Any]) -> str:
    low, high = found["range"]
    return f"{found['ratio']:.3f} ({low:.3f} to {high:.3f})"


def _verdict(row: dict[str, Any]) -> tuple[str, str]:
    verdict = row["verdict"]
    return f"<= {row['limit']:.2f}", verdict if verdict == WITHIN else f"**{verdict}**"


class _Comparison:
    """Both versions on one testbed."""

    def __init__(self, testbed: Testbed, trees: dict[str, Tree], length: Length) -> None:
        self._testbed = testbed
        self._trees = trees
        self._length = length
        self.rows: list[dict[str, Any]] = []
        self.not_run: dict[str, str] = {}
        self._core = testbed.cores[-1:]  # one core for client and server: the wall time is the sum of their work
        testbed.pin_server(self._core)

    def attempt(self, title: str, measure: Callable[[], list[dict[str, Any]]]) -> None:
        """Add the rows of a measurement, or the reason why a version cannot run it."""
        try:
            self.rows += measure()
        except WorkerFailed as why:
            self.not_run[title] = str(why)
            print(f"\n  not run: {title}: {why}", file=sys.stderr)

    def timed(self, row: Timed) -> list[dict[str, Any]]:
        """Return the times of one operation in both versions, and their ratios."""
        title, length = f"{_TITLES[row.workload]}, {row.engine}", self._length
        groups: list[list[dict[str, dict[str, float]]]] = []
        for number in range(length.processes):
            self._progress(f"{title}: {number} of {length.processes}")
            self._testbed.server.command("FLUSHALL", "SYNC")
            with ExitStack() as exits:
                workers = {}
                for side in self._trees:
                    with self._naming(side):
                        workers[side] = exits.enter_context(self._worker(side, row.candidate, row.engine))
                self._batches(workers, row, 0)  # a warm-up: it loads and specialises the code
                groups.append([self._batches(workers, row, at + number) for at in range(length.batches)])
        self._progress(f"{title}: {length.processes} of {length.processes}", end="\n")
        figures = {figure: _compared(groups, figure) for figure in ("cpu", "client_cpu", "wall", "p50")}
        return [{"workload": row.workload, "engine": row.engine, **figures}]

    def _batches(self, workers: dict[str, Worker], row: Timed, number: int) -> dict[str, dict[str, float]]:
        """Run a batch of each version, the second one first in every other round; return microseconds each."""
        order = (BEFORE, AFTER) if number % 2 == 0 else (AFTER, BEFORE)
        return {side: self._batch(side, workers[side], row) for side in order}

    def _batch(self, side: str, worker: Worker, row: Timed) -> dict[str, float]:
        remote = row.engine.startswith(REDIS)
        began = self._testbed.counters.cpu_s() if remote else 0.0
        with self._naming(side):
            figures = worker.run(row.operation, seconds=self._length.batch_s)
        count, client = figures[row.operation], figures["client_cpu_us"]
        server = (self._testbed.counters.cpu_s() - began) / count * 1e6 if remote else 0.0
        wall = 1e6 / figures[f"{row.operation}_per_s"]
        return {"cpu": client + server, "client_cpu": client, "wall": wall, "p50": figures["p50_us"]}

    def memory(self) -> list[dict[str, Any]]:
        """Return the memory of one held lease: in the server, in a client of Redis, and in the memory engine."""
        server: dict[str, list[float]] = {BEFORE: [], AFTER: []}
        clients: dict[tuple[str, str], list[float]] = {}
        for number in range(self._length.repeats):
            self._progress(f"{_TITLES[MEMORY_EACH]}: {number} of {self._length.repeats}")
            for side in (BEFORE, AFTER) if number % 2 == 0 else (AFTER, BEFORE):
                server[side].append(self._held_in_server(side))
                for engine in (REDIS, MEMORY):
                    with self._naming(side), self._worker(side, _HOLDER, engine) as worker:
                        held = worker.run("held_memory", count=self._length.leases)["bytes_each"]
                    clients.setdefault((engine, side), []).append(held)
        self._progress(f"{_TITLES[MEMORY_EACH]}: {self._length.repeats} of {self._length.repeats}", end="\n")
        return [
            _held(f"{REDIS}, server", server[BEFORE], server[AFTER]),
            _held(f"{REDIS}, client", clients[REDIS, BEFORE], clients[REDIS, AFTER]),
            _held(f"{MEMORY}, client and engine", clients[MEMORY, BEFORE], clients[MEMORY, AFTER]),
        ]

    def _held_in_server(self, side: str) -> float:
        self._testbed.server.command("FLUSHALL", "SYNC")
        with self._naming(side), self._worker(side, _HOLDER, REDIS) as worker:
            worker.run("turn", name="first")
            empty = self._testbed.counters.read().memory
            worker.run("hold_many", count=self._length.leases)
            held = (self._testbed.counters.read().memory - empty) / self._length.leases
            worker.run("release_all")
        return held

    @contextmanager
    def _naming(self, side: str) -> Iterator[None]:
        """Say which version a failed worker belongs to."""
        try:
            yield
        except WorkerFailed as why:
            raise WorkerFailed(f"{side} ({self._trees[side].name}): {why}") from why

    def _worker(self, side: str, candidate: Candidate, engine: str) -> Worker:
        """Start a process with the packages of this side, and check that it has loaded those."""
        tree = self._trees[side]
        worker = Worker(candidate, sys.executable, self._url(side, engine), self._core, path=f"{tree.packages}:{ROOT}")
        try:
            worker.receive(_READY_S)
            loaded = worker.run("source")["file"]
            if not Path(loaded).is_relative_to(tree.packages):
                raise WorkerFailed(f"it loaded {loaded} instead of a file in {tree.packages}")
        except BaseException:
            worker.close()
            raise
        return worker

    def _url(self, side: str, engine: str) -> str:
        folder = Path(self._testbed.folder) / side
        folder.mkdir(exist_ok=True)
        if engine.startswith(REDIS):
            return f"redis://127.0.0.1:{self._testbed.server.port}/{_DATABASES[side]}"
        return {MEMORY: "memory://", SQLITE: f"sqlite://{folder}/holdfast.db", FILES: f"file://{folder}"}[engine]

    def _progress(self, text: str, end: str = "") -> None:
        print(f"\r  {text}", end=end, file=sys.stderr, flush=True)


def _compared(groups: list[list[dict[str, dict[str, float]]]], figure: str) -> dict[str, Any]:
    before, after = ([[each[side][figure] for each in group] for group in groups] for side in (BEFORE, AFTER))
    return _figures(before, after) | {"best": min(map(min, after)) / min(map(min, before))}


def _figures(before: list[list[float]], after: list[list[float]]) -> dict[str, Any]:
    """Return the medians of both sides, and the ratio of neighbours: its median and its range."""
    ratio = nested_median([ratios(*pair) for pair in zip(after, before, strict=True)])
    medians = {side: median(chain.from_iterable(values)) for side, values in ((BEFORE, before), (AFTER, after))}
    return {**medians, "ratio": ratio.median, "range": [ratio.low, ratio.high]}


def _held(engine: str, before: list[float], after: list[float]) -> dict[str, Any]:
    return {"workload": MEMORY_EACH, "engine": engine, **_figures([before], [after])}


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, check=False, capture_output=True, text=True)
