"""A process of the campaign: its actors, and what its parent tells it to do to itself.

The rule: some faults can only come from within (a stall of the interpreter or the loop, a fork, a storm of
cancellations); the parent asks for them by a line. A metronome writes down when the machine itself was too late. When
its actors have closed their clients, the process counts what is left.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast
from chaos import mutants
from chaos.faces import FACES
from chaos.workload import NAME, WORKLOAD_TASKS, WorkloadTask, trusted_until_ns
from holdfast.errors import HoldfastError, LeaseLost
from holdfast.testing.child_process import read_line, ready
from holdfast.testing.guard import GuardedFile
from holdfast.testing.history import Recorder
from tests.support.fault_windows import MACHINE

if TYPE_CHECKING:
    from collections.abc import Sequence

_BEAT_S = 0.05
_LATE_S = 0.25
_SETTLE_S = 5.0


class WorkerContext:
    """What the actors of one process share."""

    def __init__(
        self,
        *,
        folder: Path,
        urls: dict[str, str],
        face: str,
        workload: str,
        ttl_s: float,
        guarded: bool,
        long: float,
    ) -> None:
        self.folder = folder
        self.urls = urls
        self.face = FACES[face]()
        self.ttl_s = ttl_s
        self.guarded = guarded
        self.long = long
        self.over = False
        self.workload = workload
        self.last = f"w{len(urls) - 1}" if len(urls) > 1 else ""
        self.counter = GuardedFile(folder / "counter.json")
        self.list = GuardedFile(folder / "list.json", initial=[])
        self._fork_wanted = False
        self._children: list[int] = []

    def url(self, label: str) -> str:
        return self.urls[label]

    def number_of(self, label: str, count: int) -> int:
        """A number that no other worker has, nor another life of this one."""
        return (int(label[1:]) << 48) + (os.getpid() << 24) + count

    def want_fork(self) -> None:
        self._fork_wanted = True

    def fork_wanted(self, label: str) -> bool:
        wanted, self._fork_wanted = self._fork_wanted, False
        return wanted

    def fork(self, actor: WorkloadTask, lease: Any) -> None:
        """Leave a child in mid-hold, which tries what a careless program would try."""
        pid = os.fork()
        if pid:
            self._children.append(pid)
            return
        try:
            _inherit(actor, lease)
        finally:
            os._exit(0)

    def reap(self) -> None:
        for pid in self._children:
            os.waitpid(pid, 0)


def _inherit(actor: WorkloadTask, lease: Any) -> None:
    """In a child: claim the parent's lease, give it back, and ask for another. Only the last may be answered."""
    label = f"{actor.label}.child"
    with Recorder(actor.recorder.path, label) as recorder:
        mine = {"fence": lease.fence, "token": lease.token}
        with suppress(LeaseLost):
            lease.check()
            recorder.record("granted", lease.name, until_ns=trusted_until_ns(lease), **mine)
            if actor.context.face.name == "blocking":
                lease.release()
        with suppress(HoldfastError):
            hf = holdfast.connect(actor.context.url(actor.label), label=label)
            requested_ns = time.monotonic_ns()
            with hf.lock(NAME, ttl=actor.context.ttl_s, timeout=0) as own:
                until_ns = trusted_until_ns(own)
                recorder.record(
                    "granted", NAME, fence=own.fence, token=own.token, since_ns=requested_ns, until_ns=until_ns
                )
                recorder.record("released", NAME, fence=own.fence, token=own.token)
            hf.close(timeout=1)


def work(*, labels: Sequence[str], history: str, seed: str, mutant: str = "", **context: Any) -> None:
    """What a worker process runs."""
    mutants.apply(mutant, Path(context["folder"]))
    stage = WorkerContext(**{**context, "folder": Path(context["folder"])})
    recorders = {label: Recorder(history, label) for label in labels}
    kind = WORKLOAD_TASKS[stage.workload]
    actors = [kind(stage, label, recorders[label], random.Random(f"{seed}|{label}")) for label in labels]
    _warm_up(stage, labels[0])
    ControlThread(stage, actors, random.Random(f"{seed}|storm")).start()
    StallDetector(recorders, min(_LATE_S, stage.ttl_s / 5)).start()
    before = _belongings()
    ready()
    stage.face.live([actor.live for actor in actors])
    stage.reap()
    left = _left(before)
    recorders[labels[0]].record("leaked", "", value=len(left), detail=", ".join(left) or None)


class ControlThread(threading.Thread):
    """Hears what the parent wants, and does it."""

    def __init__(self, context: WorkerContext, actors: list[WorkloadTask], rng: random.Random) -> None:
        super().__init__(name="campaign-ear", daemon=True)
        self._scene = context
        self._actors = actors
        self._dice = rng
        self._numbers = itertools.count(1)
        # Opened once and before anything is counted, so that they are not taken for something left behind.
        self._storms = {
            f"{actor.label}.storm": Recorder(actor.recorder.path, f"{actor.label}.storm") for actor in actors
        }

    def run(self) -> None:
        while not self._scene.over:
            try:
                verb, *arguments = read_line().split()
            except EOFError:
                verb, arguments = "stop", []
            getattr(self, verb)(*arguments)

    def stop(self) -> None:
        self._scene.over = True

    def fork(self) -> None:
        self._scene.want_fork()

    def gil(self, seconds: str) -> None:
        """A call into C that does not let go of the interpreter."""
        self._fault("gil stall", lambda: ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6)))

    def loop(self, seconds: str) -> None:
        self._fault("loop stall", lambda: self._scene.face.stall(float(seconds)))

    def storm(self) -> None:
        actor = self._dice.choice(self._actors)
        label = f"{actor.label}.storm"
        face = self._scene.face
        recorder = self._storms[label]

        async def attempt(client: Any, patience_s: float | None) -> None:
            lock = client.lock(NAME, ttl=self._scene.ttl_s, timeout=patience_s)
            requested_ns = time.monotonic_ns()
            async with face.holding(lock) as lease:
                mine = {"fence": lease.fence, "token": lease.token}
                recorder.record("granted", NAME, since_ns=requested_ns, until_ns=trusted_until_ns(lease), **mine)
                recorder.record("released", NAME, **mine)

        face.storm(self._dice, self._scene.url(actor.label), label, attempt)

    def _fault(self, kind: str, strike: Any) -> None:
        """Only the process itself knows when it was struck."""
        number = next(self._numbers)
        for actor in self._actors:
            actor.recorder.record("fault", actor.label, value=number, detail=kind)
        try:
            strike()
        finally:
            for actor in self._actors:
                actor.recorder.record("healed", actor.label, value=number, detail=kind)


class StallDetector(threading.Thread):
    """Writes down when this process was not run for a while, for whatever reason.

    A short ttl is lost by a few short stalls, and so those are written down, too.
    """

    def __init__(self, recorders: dict[str, Recorder], late_s: float) -> None:
        super().__init__(name="campaign-metronome", daemon=True)
        self._recorders = recorders
        self._late_s = late_s

    def run(self) -> None:
        while True:
            since_ns = time.monotonic_ns()
            time.sleep(_BEAT_S)
            if time.monotonic_ns() - since_ns > (_BEAT_S + self._late_s) * 1e9:
                for label, recorder in self._recorders.items():
                    recorder.record("fault", label, since_ns=since_ns, detail=MACHINE)


def _warm_up(context: WorkerContext, label: str) -> None:
    """Use everything once: what a process keeps for good (modules, a file's kernel locks) is no leak."""

    async def once() -> None:
        client = await context.face.connect(context.url(label), f"{label}.warm", None)
        try:
            lock = client.lock(f"{NAME}/warm", ttl=5, timeout=20)
            async with context.face.holding(lock):
                await context.face.sleep(0)
        finally:
            await context.face.close(client)

    with suppress(HoldfastError):  # a fault may strike even here
        context.face.live([once])


def _belongings() -> tuple[Counter[str], int]:
    return Counter(thread.name for thread in threading.enumerate()), len(os.listdir("/proc/self/fd"))


def _left(before: tuple[Counter[str], int]) -> list[str]:
    """What is here now and was not before; it has a moment to go."""
    end = time.monotonic() + _SETTLE_S
    while True:
        threads, descriptors = _belongings()
        found = [f"{count} threads {name}" for name, count in sorted((threads - before[0]).items())]
        if descriptors > before[1]:
            found.append(f"{descriptors - before[1]} descriptors")
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)
