"""What all parts stand on: one server, workers in their own environments, and rounds that interleave everybody.

A contender that cannot run, or breaks on the way, is named in the results with the reason; it never just disappears.
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

from bench.contenders import DIRECTORY, FILE, UNIX, Contender
from bench.environments import ROOT, Environment
from bench.figures import over_rounds
from bench.meter import Meter
from holdfast.testing.child_process import LinePipe
from holdfast.testing.servers import Server, available

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LONGEST_S = 900
_READY_S = 120.0  # a hundred interpreters may start at once
clock = time.monotonic


class Broken(Exception):
    """A worker could not do what it was told; the text is what it said last."""


class Worker:
    """One process of one contender, seen from outside."""

    def __init__(self, contender: Contender, python: str, url: str, cores: Sequence[int], path: str) -> None:
        """`python` is the interpreter of its environment; a contender of Node finds its packages beside it."""
        job = {
            "opener": contender.opener,
            "url": url,
            "ttl": contender.ttl,
            "options": contender.options,
            "loop": contender.loop,
            "cores": list(cores),
            "longest_s": LONGEST_S,
        }
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [*_program(contender, python, cores), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "NODE_PATH": str(Path(python).parents[1] / "node_modules")},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._lines = LinePipe(self._process.stdout.fileno(), self._process.stdin.fileno())

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, deed: str, **arguments: Any) -> None:
        self._lines.send(json.dumps({"deed": deed, **arguments}))

    def hear(self, timeout: float = LONGEST_S) -> dict[str, Any]:
        try:
            return json.loads(self._lines.receive(timeout))
        except (EOFError, TimeoutError) as error:
            self._said.seek(0)
            lines = self._said.read().decode(errors="replace").strip().splitlines()
            silent = (
                f"no answer within {timeout:.0f} s" if isinstance(error, TimeoutError) else "it ended without a word"
            )
            raise Broken(lines[-1] if lines else silent) from error

    def do(self, deed: str, **arguments: Any) -> dict[str, Any]:
        self.tell(deed, **arguments)
        return self.hear()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it. What it held is nobody's business here: the next run uses other names."""
        self.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _program(contender: Contender, python: str, cores: Sequence[int]) -> list[str]:
    """What a worker runs. One in Node is pinned from outside; ours pins itself when it has read its job."""
    if not contender.opener.endswith(".js"):
        return [python, "-m", "bench.worker"]
    pinned = ["taskset", "--cpu-list", ",".join(map(str, cores))] if cores else []
    return [*pinned, "node", str(ROOT / "bench" / "openers" / contender.opener)]


class Run(NamedTuple):
    """One contender in one part: the figures of each round, and those that were found once."""

    contender: Contender
    rounds: list[dict[str, Any]]
    once: dict[str, Any]

    def row(self) -> dict[str, Any]:
        """What the results keep of it."""
        who = self.contender
        return {
            "contender": who.name,
            "role": who.role,
            "loop": who.loop,
            "wire": who.wire,
            "figures": {
                key: value._asdict() for key, value in over_rounds([each | self.once for each in self.rounds]).items()
            },
            "rounds": self.rounds,
        }


Crew = tuple[Contender, list[Worker]]


class Arena:
    """A server, a folder, and everybody's interpreter."""

    def __init__(self, environments: dict[str, Environment], path: str = str(ROOT)) -> None:
        self.environments = environments
        self.not_run: dict[str, str] = {}
        self.urls: dict[str, str] = {}  # of wires that only some parts have
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
            self.meter = Meter(self.server)
            self._exits = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def new_name(self) -> str:
        """A name that nobody has used."""
        self._serial += 1
        return f"bench-{os.getpid()}-{self._serial}"

    def pin_server(self, cores: Sequence[int]) -> None:
        if self.cores:
            os.sched_setaffinity(self.server.pid, cores or self.cores)

    def launch(self, contender: Contender, cores: Sequence[int] = ()) -> Worker:
        """A worker that is on its way: it says so when it is ready."""
        environment = self.environments[contender.environment]
        if environment.why_not:
            raise Broken(environment.why_not)
        return Worker(contender, environment.python, self._url(contender), cores, self._path)

    def start(self, contender: Contender, cores: Sequence[int] = ()) -> Worker:
        """A worker that is ready; `Broken` if it cannot be."""
        worker = self.launch(contender, cores)
        try:
            worker.hear(_READY_S)
        except BaseException:
            worker.close()
            raise
        return worker

    def _url(self, contender: Contender) -> str:
        if contender.wire in self.urls:
            return self.urls[contender.wire]
        if contender.wire == UNIX:
            return f"unix://{self.socket}"
        if contender.wire == DIRECTORY:
            return f"file://{self.folder}"
        if contender.wire == FILE:
            return f"sqlite://{self.folder}/holdfast.db" if contender.role == "ours" else self.folder
        return f"redis://127.0.0.1:{self.server.port}"

    @contextmanager
    def crews(self, contenders: Sequence[Contender], size: int = 1, cores: Sequence[int] = ()) -> Iterator[list[Crew]]:
        """That many workers of each contender, all ready; those that cannot start are left out and noted."""
        with ExitStack() as exits:
            launched: list[Crew] = []
            for contender in contenders:
                try:
                    crew = [exits.enter_context(self.launch(contender, cores)) for _ in range(size)]
                    launched.append((contender, crew))
                except Broken as why:
                    self.note(contender, str(why))
            ready = list(launched)
            for _ in self._each(ready, lambda _, crew: {"ready": [worker.hear(_READY_S) for worker in crew]}):
                pass
            yield ready

    def note(self, contender: Contender, why: str) -> None:
        self.not_run.setdefault(contender.name, why)
        print(f"  not run: {contender.name}: {why}", file=sys.stderr)

    def interleaved(
        self,
        contenders: Sequence[Contender],
        rounds: int,
        one_round: Callable[[Contender, list[Worker]], dict[str, Any]],
        *,
        size: int = 1,
        cores: Sequence[int] = (),
        warm_up: bool = False,
        afterwards: Callable[[Contender, list[Worker]], dict[str, Any]] | None = None,
    ) -> list[Run]:
        """Everybody in every round, in an order that changes. A round to warm up does not count.

        What is found `afterwards` is found once, when the clocks no longer run.
        """
        runs = {each.name: Run(each, [], {}) for each in contenders}
        with self.crews(contenders, size, cores) as crews:
            for number in range(-int(warm_up), rounds):
                random.shuffle(crews)
                for contender, figures in self._each(crews, one_round):
                    runs[contender.name].rounds.extend([figures] * (number >= 0))
                print(f"\r  round {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
            for contender, figures in self._each(crews, afterwards) if afterwards else ():
                runs[contender.name].once.update(figures)
        print(file=sys.stderr)
        return [run for run in runs.values() if len(run.rounds) == rounds]

    def _each(
        self, crews: list[Crew], ask: Callable[[Contender, list[Worker]], dict[str, Any]]
    ) -> Iterator[tuple[Contender, dict[str, Any]]]:
        """What each crew answers; one that breaks is out."""
        for contender, crew in tuple(crews):
            try:
                yield contender, ask(contender, crew)
            except Broken as why:
                self.note(contender, str(why))
                crews.remove((contender, crew))
