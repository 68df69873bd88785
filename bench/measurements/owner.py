"""Streams that are owned for hours: what it costs to keep them, and how those of a killed pod find new owners.

Beside Holdfast runs the sequence that it replaces, on the same server: see `bench/owning.py`. The time of a lease is
the same for both.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import holdfast
from bench.candidates import OWNERS, SUCCESSORS, owning
from bench.environments import ROOT
from bench.programs.stream_sequence import LOCK
from bench.testbed import Run, WorkerFailed, clock
from holdfast.testing import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bench.candidates import Candidate
    from bench.scale import Scale
    from bench.testbed import Testbed

_LONGEST_S = 60.0
# What the server counts for one extension of a lock: the script, GET and PEXPIRE.
_EXTENSION = 3
_LEFT = """
local most = 0
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do most = math.max(most, redis.call('PTTL', key)) end
return most"""


class Pod:
    """One process that owns streams, seen from outside."""

    def __init__(self, testbed: Testbed, candidate: Candidate, name: str, ttl: float, fill: int = 0) -> None:
        job = {
            "way": candidate.adapter,
            "url": f"redis://127.0.0.1:{testbed.server.port}",
            "name": name,
            "ttl": ttl,
            "fill": fill,
            "batch": candidate.options.get("batch", 0),
        }
        environment = testbed.environments[candidate.environment]
        if environment.why_not:
            raise WorkerFailed(environment.why_not)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        command = [environment.python, "-m", "bench.programs.stream_owner", json.dumps(job)]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True, cwd=ROOT, env=kept
        )
        self._told: list[dict[str, Any]] = []
        self._hears = threading.Thread(target=self._hear, daemon=True)
        self._hears.start()
        try:
            self.until(lambda: self.told("ready"), "a process that is ready")
        except BaseException:
            self.close()
            raise

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._told.append(json.loads(line))

    def told(self, what: str) -> list[dict[str, Any]]:
        # Not by `tuple`: while that copies a list to which another thread appends, CPython 3.11 may crash.
        return [each for each in self._told if each["what"] == what]

    def until(self, ask: Any, what: str, longest_s: float = _LONGEST_S) -> None:
        """Wait for it, as long as the process lives."""
        try:
            eventually(lambda: ask() or self._process.poll() is not None, longest_s, what)
        except TimeoutError as late:
            raise WorkerFailed(str(late)) from late
        if not ask():
            self._said.seek(0)
            lines = self._said.read().decode(errors="replace").strip().splitlines()
            raise WorkerFailed(lines[-1] if lines else "it ended without a word")

    def until_owned(self, count: int) -> None:
        self.until(lambda: len(self.told("added")) >= count, f"{count} streams")

    def look(self) -> dict[str, Any]:
        """How it stands now."""
        asked = len(self.told("state"))
        assert self._process.stdin is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        self.until(lambda: len(self.told("state")) > asked, "an answer")
        return self.told("state")[-1]

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. What it owned is nobody's business here: the next run begins with an empty server."""
        self.kill()
        self._hears.join()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            pipe.close()  # type: ignore[union-attr]


def heartbeats(testbed: Testbed, scale: Scale) -> list[dict[str, Any]]:
    """One process that keeps so many streams and does nothing else; `times_one` is beside one stream alone."""
    testbed.pin_server(())
    runs = {each.name: Run(each, [], {}) for each in _sized(scale.owner_streams)}
    for _ in range(scale.owner_rounds):
        one: dict[str, float] = {}
        for count in scale.owner_streams:
            for way in random.sample(OWNERS, len(OWNERS)):
                run = runs[owning(way, count).name]
                for figures in _unless_broken(testbed, run, partial(_kept, testbed, way, count, scale)):
                    base = one.setdefault(way.name, figures["commands_per_s"])
                    run.rounds.append(figures | {"times_one": figures["commands_per_s"] / base})
    return _rows(runs.values(), scale)


def _unless_broken(testbed: Testbed, run: Run, measure: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures of one round; none if it broke, and then it is named with the reason."""
    try:
        return [measure()]
    except WorkerFailed as why:
        testbed.note(run.candidate, str(why))
        return []


def _rows(runs: Iterable[Run], scale: Scale) -> list[dict[str, Any]]:
    """Of those who were there in every round."""
    return [run.row() for run in runs if len(run.rounds) == scale.owner_rounds]


def _sized(counts: Iterable[int]) -> list[Candidate]:
    return [owning(way, count) for way in OWNERS for count in counts]


def _kept(testbed: Testbed, way: Candidate, count: int, scale: Scale) -> dict[str, Any]:
    testbed.server.command("FLUSHALL", "SYNC")
    with Pod(testbed, way, "keeper", scale.owner_ttl_s, count) as pod:
        pod.until_owned(count)
        time.sleep(scale.owner_ttl_s)  # what is due at once is over
        state, before, began = pod.look(), testbed.counters.read(), clock()
        time.sleep(scale.owner_s)
        after, later, passed = testbed.counters.read(), pod.look(), clock() - began
        cpu_s = later["cpu_s"] - state["cpu_s"] + after.cpu_s - before.cpu_s
        return {
            "streams": count,
            "commands_per_s": (after.commands - before.commands) / passed,
            "scripts_per_s": (after.scripts - before.scripts) / passed,
            "cpu_share": cpu_s / passed,
            "lost": count - later["owned"],
        }


def handed_over(testbed: Testbed, scale: Scale, candidates: Sequence[Candidate] = SUCCESSORS) -> list[dict[str, Any]]:
    """A pod with many streams is killed; two others find them, each by looking."""
    testbed.pin_server(())
    runs = [Run(each, [], {}) for each in candidates]
    for _ in range(scale.owner_rounds):
        for run in random.sample(runs, len(runs)):
            measure = partial(_taken_over, testbed, run.candidate, scale.owner_killed, scale.owner_ttl_s)
            run.rounds.extend(_unless_broken(testbed, run, measure))
    return _rows(runs, scale)


def _taken_over(testbed: Testbed, way: Candidate, count: int, ttl: float) -> dict[str, Any]:
    """All is counted from the kill on, by the server; the time from the end of the last lease on."""
    testbed.server.command("FLUSHALL", "SYNC")
    with ExitStack() as exits:
        doomed = exits.enter_context(Pod(testbed, way, "doomed", ttl, count))
        doomed.until_owned(count)
        successors = [exits.enter_context(Pod(testbed, way, name, ttl)) for name in ("first", "second")]
        time.sleep(2 * ttl)  # all of them have been owned for longer than a lease
        asked = exits.enter_context(holdfast.connect(f"redis://127.0.0.1:{testbed.server.port}")).queue("bench")
        asked.consumers()
        assert not any(successor.told("added") for successor in successors)
        doomed.kill()
        ends = clock() + (_left(asked) if way.role == "ours" else _left_of_locks(testbed))
        extended, before = _extensions(successors), testbed.counters.read()

        def owned() -> set[str]:
            return {each["stream"] for successor in successors for each in successor.told("added")}

        successors[0].until(lambda: len(owned()) == count, "an owner for every stream", _LONGEST_S + count * ttl / 50)
        after, extended = testbed.counters.read(), _extensions(successors) - extended
        shares = sorted(len(successor.told("added")) for successor in successors)
        return {
            "takeover_s": max(each["at"] for successor in successors for each in successor.told("added")) - ends,
            "streams": count,
            "least": shares[0],
            "most": shares[-1],
            "evenness": shares[0] / shares[-1],
            "twice": sum(shares) - count,
            "commands": (after.commands - before.commands - _EXTENSION * extended) / count,
            "server_cpu_us": (after.cpu_s - before.cpu_s) / count * 1e6,
        }


def _extensions(pods: list[Pod]) -> int:
    return sum(pod.look()["extensions"] for pod in pods)


def _left(queue: holdfast.Queue) -> float:
    """How long the dead pod's lease lasts, by the server's clock."""
    return next(max(0.0, each.remaining) for each in queue.consumers() if each.label == "doomed")


def _left_of_locks(testbed: Testbed) -> float:
    """The same, of the last of its locks."""
    left: int = testbed.server.command("EVAL", _LEFT, 0, f"{LOCK}*")
    return left / 1000
