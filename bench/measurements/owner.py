"""Streams that a process owns for hours: the cost of keeping them, and the takeover after a pod is killed.

The sequence of commands that Holdfast replaces runs on the same server: see `bench/programs/stream_owner.py`. Both use
the same ttl.
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
# The commands that the server counts for one extension of a lock: the script, GET and PEXPIRE.
_EXTENSION = 3
_LEFT = """
local most = 0
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do most = math.max(most, redis.call('PTTL', key)) end
return most"""


class Pod:
    """The parent's side of one process that owns streams."""

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
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True, cwd=ROOT, env=kept
        )
        self._messages: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.until(lambda: self.received("ready"), "a ready process")
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._messages.append(json.loads(line))

    def received(self, what: str) -> list[dict[str, Any]]:
        """Return the messages of this kind."""
        # Not `tuple(...)`: CPython 3.11 may crash if another thread appends to the list during the copy.
        return [each for each in self._messages if each["what"] == what]

    def until(self, condition: Any, what: str, longest_s: float = _LONGEST_S) -> None:
        """Wait for a condition while the process lives. Raises `WorkerFailed`."""
        try:
            eventually(lambda: condition() or self._process.poll() is not None, longest_s, what)
        except TimeoutError as late:
            raise WorkerFailed(str(late)) from late
        if not condition():
            self._stderr.seek(0)
            lines = self._stderr.read().decode(errors="replace").strip().splitlines()
            raise WorkerFailed(lines[-1] if lines else "it ended without a message")

    def until_owned(self, count: int) -> None:
        self.until(lambda: len(self.received("added")) >= count, f"{count} streams")

    def state(self) -> dict[str, Any]:
        """Return its present state."""
        known = len(self.received("state"))
        assert self._process.stdin is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        self.until(lambda: len(self.received("state")) > known, "an answer")
        return self.received("state")[-1]

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill it. Its streams do not matter: the next run begins with an empty server."""
        self.kill()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            pipe.close()  # type: ignore[union-attr]


def heartbeats(testbed: Testbed, scale: Scale) -> list[dict[str, Any]]:
    """Measure one process that keeps so many streams and does nothing else; `times_one` compares with one stream."""
    testbed.pin_server(())
    runs = {each.name: Run(each, [], {}) for each in _sized(scale.owner_streams)}
    for _ in range(scale.owner_rounds):
        one: dict[str, float] = {}
        for count in scale.owner_streams:
            for way in random.sample(OWNERS, len(OWNERS)):
                run = runs[owning(way, count).name]
                for figures in _measured(testbed, run, partial(_kept, testbed, way, count, scale)):
                    base = one.setdefault(way.name, figures["commands_per_s"])
                    run.rounds.append(figures | {"times_one": figures["commands_per_s"] / base})
    return _rows(runs.values(), scale)


def _measured(testbed: Testbed, run: Run, measure: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures of one round in a list; record the reason and return an empty list if it failed."""
    try:
        return [measure()]
    except WorkerFailed as why:
        testbed.record_failure(run.candidate, str(why))
        return []


def _rows(runs: Iterable[Run], scale: Scale) -> list[dict[str, Any]]:
    """Return the rows of the candidates that ran in every round."""
    return [run.row() for run in runs if len(run.rounds) == scale.owner_rounds]


def _sized(counts: Iterable[int]) -> list[Candidate]:
    return [owning(way, count) for way in OWNERS for count in counts]


def _kept(testbed: Testbed, way: Candidate, count: int, scale: Scale) -> dict[str, Any]:
    testbed.server.command("FLUSHALL", "SYNC")
    with Pod(testbed, way, "keeper", scale.owner_ttl_s, count) as pod:
        pod.until_owned(count)
        time.sleep(scale.owner_ttl_s)  # renewals that are due at once are done
        first, before, began = pod.state(), testbed.counters.read(), clock()
        time.sleep(scale.owner_s)
        after, later, passed = testbed.counters.read(), pod.state(), clock() - began
        cpu_s = later["cpu_s"] - first["cpu_s"] + after.cpu_s - before.cpu_s
        return {
            "streams": count,
            "commands_per_s": (after.commands - before.commands) / passed,
            "scripts_per_s": (after.scripts - before.scripts) / passed,
            "cpu_share": cpu_s / passed,
            "lost": count - later["owned"],
        }


def takeover(testbed: Testbed, scale: Scale, candidates: Sequence[Candidate] = SUCCESSORS) -> list[dict[str, Any]]:
    """Kill a pod with many streams; measure how two others take them over, without notifications."""
    testbed.pin_server(())
    runs = [Run(each, [], {}) for each in candidates]
    for _ in range(scale.owner_rounds):
        for run in random.sample(runs, len(runs)):
            measure = partial(_taken_over, testbed, run.candidate, scale.owner_killed, scale.owner_ttl_s)
            run.rounds.extend(_measured(testbed, run, measure))
    return _rows(runs, scale)


def _taken_over(testbed: Testbed, way: Candidate, count: int, ttl: float) -> dict[str, Any]:
    """Count commands from the kill on, and the time from the end of the last lease on."""
    testbed.server.command("FLUSHALL", "SYNC")
    with ExitStack() as exits:
        doomed = exits.enter_context(Pod(testbed, way, "doomed", ttl, count))
        doomed.until_owned(count)
        successors = [exits.enter_context(Pod(testbed, way, name, ttl)) for name in ("first", "second")]
        time.sleep(2 * ttl)  # all streams have been owned for longer than a lease
        queue = exits.enter_context(holdfast.connect(f"redis://127.0.0.1:{testbed.server.port}")).queue("bench")
        queue.consumers()
        assert not any(successor.received("added") for successor in successors)
        doomed.kill()
        ends = clock() + (_left(queue) if way.role == "ours" else _left_of_locks(testbed))
        extended, before = _extensions(successors), testbed.counters.read()

        def owned() -> set[str]:
            return {each["stream"] for successor in successors for each in successor.received("added")}

        successors[0].until(lambda: len(owned()) == count, "an owner for every stream", _LONGEST_S + count * ttl / 50)
        after, extended = testbed.counters.read(), _extensions(successors) - extended
        shares = sorted(len(successor.received("added")) for successor in successors)
        return {
            "takeover_s": max(each["at"] for successor in successors for each in successor.received("added")) - ends,
            "streams": count,
            "least": shares[0],
            "most": shares[-1],
            "evenness": shares[0] / shares[-1],
            "twice": sum(shares) - count,
            "commands": (after.commands - before.commands - _EXTENSION * extended) / count,
            "server_cpu_us": (after.cpu_s - before.cpu_s) / count * 1e6,
        }


def _extensions(pods: list[Pod]) -> int:
    return sum(pod.state()["extensions"] for pod in pods)


def _left(queue: holdfast.Queue) -> float:
    """Return the remaining time of the dead pod's lease, by the server's clock."""
    return next(max(0.0, each.remaining) for each in queue.consumers() if each.label == "doomed")


def _left_of_locks(testbed: Testbed) -> float:
    """Return the remaining time of the last of its locks."""
    left: int = testbed.server.command("EVAL", _LEFT, 0, f"{LOCK}*")
    return left / 1000
