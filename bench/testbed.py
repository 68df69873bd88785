"""The base of all measurements: one server, workers in their own environments, and rounds that interleave candidates.

The results name every candidate that cannot run or fails, with the reason: no candidate disappears silently.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from bench.candidates import DIRECTORY, FILE, UNIX, Candidate
from bench.environments import ROOT, Environment
from bench.server_counters import ServerCounters
from bench.stats import over_rounds
from holdfast.testing.child_process import LinePipe
from holdfast.testing.servers import Server, available

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LONGEST_S = 900
_READY_S = 120.0  # a hundred interpreters may start at once
clock = time.monotonic


class WorkerFailed(Exception):
    """A worker could not run its workload; the text is the last line of its standard error."""


class Worker:
    """The parent's side of one process of one candidate."""

    def __init__(self, candidate: Candidate, python: str, url: str, cores: Sequence[int], path: str) -> None:
        """Start it. `python`: the interpreter of its environment; a Node candidate has its packages beside it."""
        job = {
            "adapter": candidate.adapter,
            "url": url,
            "ttl": candidate.ttl,
            "options": candidate.options,
            "loop": candidate.loop,
            "cores": list(cores),
            "longest_s": LONGEST_S,
        }
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [*_program(candidate, python, cores), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "NODE_PATH": str(Path(python).parents[1] / "node_modules")},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._lines = LinePipe(self._process.stdout.fileno(), self._process.stdin.fileno())

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, workload: str, **arguments: Any) -> None:
        """Start a workload without waiting for it."""
        self._lines.send(json.dumps({"workload": workload, **arguments}))

    def receive(self, timeout: float = LONGEST_S) -> dict[str, Any]:
        """Return the figures of the workload; `WorkerFailed` if the process ended or the time is over."""
        try:
            return json.loads(self._lines.receive(timeout))
        except (EOFError, TimeoutError) as error:
            self._stderr.seek(0)
            lines = self._stderr.read().decode(errors="replace").strip().splitlines()
            silence = (
                f"no answer within {timeout:.0f} s" if isinstance(error, TimeoutError) else "it ended without a message"
            )
            raise WorkerFailed(lines[-1] if lines else silence) from error

    def run(self, workload: str, **arguments: Any) -> dict[str, Any]:
        """Run a workload to its end; return its figures."""
        self.send(workload, **arguments)
        return self.receive()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill it. Its leases do not matter: the next measurement uses other names."""
        self.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _program(candidate: Candidate, python: str, cores: Sequence[int]) -> list[str]:
    """Return the command line. A Node worker is pinned to its cores from outside; a Python worker pins itself."""
    if not candidate.adapter.endswith(".js"):
        return [python, "-m", "bench.worker"]
    pinned = ["taskset", "--cpu-list", ",".join(map(str, cores))] if cores else []
    return [*pinned, "node", str(ROOT / "bench" / "adapters" / candidate.adapter)]


class Run(NamedTuple):
    """One candidate in one measurement: the figures of each round, and those that were measured once."""

    candidate: Candidate
    rounds: list[dict[str, Any]]
    once: dict[str, Any]

    def row(self) -> dict[str, Any]:
        """Return the row for the results."""
        candidate = self.candidate
        return {
            "candidate": candidate.name,
            "role": candidate.role,
            "loop": candidate.loop,
            "wire": candidate.wire,
            "figures": over_rounds([each | self.once for each in self.rounds]),
            "rounds": self.rounds,
        }


ProcessGroup = tuple[Candidate, list[Worker]]


class Testbed:
    """A server, a folder, and the interpreter of every candidate."""

    __test__ = False  # its name begins like that of a test

    def __init__(self, environments: dict[str, Environment], path: str = str(ROOT)) -> None:
        self.environments = environments
        self.not_run: dict[str, str] = {}
        self.urls: dict[str, str] = {}  # of connections that only some measurements have
        self._path = path
        self._exits = ExitStack()
        self.cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._serial = 0

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self.folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="hf-bench-"))
            self.socket = str(Path(self.folder) / "s.sock")
            kind = next(iter(available()))
            self.server = undo.enter_context(Server(kind, arguments=("--unixsocket", self.socket)))
            self.counters = ServerCounters(self.server)
            self._exits = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def new_name(self) -> str:
        """Return an unused name."""
        self._serial += 1
        return f"bench-{os.getpid()}-{self._serial}"

    def pin_server(self, cores: Sequence[int]) -> None:
        """Pin the server to these cores, or to all."""
        if self.cores:
            os.sched_setaffinity(self.server.pid, cores or self.cores)

    def launch(self, candidate: Candidate, cores: Sequence[int] = ()) -> Worker:
        """Start a worker without waiting until it is ready."""
        environment = self.environments[candidate.environment]
        if environment.why_not:
            raise WorkerFailed(environment.why_not)
        return Worker(candidate, environment.python, self._url(candidate), cores, self._path)

    def start(self, candidate: Candidate, cores: Sequence[int] = ()) -> Worker:
        """Start a worker and wait until it is ready. Raises `WorkerFailed`."""
        worker = self.launch(candidate, cores)
        try:
            worker.receive(_READY_S)
        except BaseException:
            worker.close()
            raise
        return worker

    def _url(self, candidate: Candidate) -> str:
        if candidate.wire in self.urls:
            return self.urls[candidate.wire]
        if candidate.wire == UNIX:
            return f"unix://{self.socket}"
        if candidate.wire == DIRECTORY:
            return f"file://{self.folder}"
        if candidate.wire == FILE:
            return f"sqlite://{self.folder}/holdfast.db" if candidate.role == "ours" else self.folder
        return f"redis://127.0.0.1:{self.server.port}"

    @contextmanager
    def process_groups(
        self, candidates: Sequence[Candidate], size: int = 1, cores: Sequence[int] = ()
    ) -> Iterator[list[ProcessGroup]]:
        """Start `size` workers of each candidate; record candidates that cannot start, and leave them out."""
        with ExitStack() as exits:
            launched: list[ProcessGroup] = []
            for candidate in candidates:
                try:
                    processes = [exits.enter_context(self.launch(candidate, cores)) for _ in range(size)]
                    launched.append((candidate, processes))
                except WorkerFailed as why:
                    self.record_failure(candidate, str(why))
            ready = list(launched)
            for _ in self._each(ready, lambda _, processes: {"ready": [each.receive(_READY_S) for each in processes]}):
                pass
            yield ready

    def record_failure(self, candidate: Candidate, why: str) -> None:
        """Record why a candidate did not run."""
        self.not_run.setdefault(candidate.name, why)
        print(f"  not run: {candidate.name}: {why}", file=sys.stderr)

    def interleaved(
        self,
        candidates: Sequence[Candidate],
        rounds: int,
        one_round: Callable[[Candidate, list[Worker]], dict[str, Any]],
        *,
        size: int = 1,
        cores: Sequence[int] = (),
        warm_up: bool = False,
        afterwards: Callable[[Candidate, list[Worker]], dict[str, Any]] | None = None,
    ) -> list[Run]:
        """Run every candidate in every round, in a changing order. A warm-up round does not count.

        `afterwards` runs once per candidate, after all timed rounds.
        """
        runs = {each.name: Run(each, [], {}) for each in candidates}
        with self.process_groups(candidates, size, cores) as process_groups:
            for number in range(-int(warm_up), rounds):
                random.shuffle(process_groups)
                for candidate, figures in self._each(process_groups, one_round):
                    runs[candidate.name].rounds.extend([figures] * (number >= 0))
                print(f"\r  round {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
            for candidate, figures in self._each(process_groups, afterwards) if afterwards else ():
                runs[candidate.name].once.update(figures)
        print(file=sys.stderr)
        return [run for run in runs.values() if len(run.rounds) == rounds]

    def _each(
        self, process_groups: list[ProcessGroup], measure: Callable[[Candidate, list[Worker]], dict[str, Any]]
    ) -> Iterator[tuple[Candidate, dict[str, Any]]]:
        """Yield the figures of each candidate; a candidate that fails is removed."""
        for candidate, processes in tuple(process_groups):
            try:
                yield candidate, measure(candidate, processes)
            except WorkerFailed as why:
                self.record_failure(candidate, str(why))
                process_groups.remove((candidate, processes))
