"""A worker process of the campaign: its workload tasks, and the faults that only the process itself can inject.

A stall of the interpreter or the loop, a fork and a storm of cancellations come from within; the parent requests them
by a line. A stall detector records when the machine did not run the process. When the tasks have closed their clients,
the process counts what is left.
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

_TICK_S = 0.05
_LATE_S = 0.25
_END_S = 5.0


class WorkerContext:
    """The settings and resources that the tasks of one process share."""

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
        """Return a number that no other worker has, nor an earlier process of this one."""
        return (int(label[1:]) << 48) + (os.getpid() << 24) + count

    def want_fork(self) -> None:
        self._fork_wanted = True

    def fork_wanted(self, label: str) -> bool:
        wanted, self._fork_wanted = self._fork_wanted, False
        return wanted

    def fork(self, task: WorkloadTask, lease: Any) -> None:
        """Fork while holding; the child tries what a careless program would try."""
        pid = os.fork()
        if pid:
            self._children.append(pid)
            return
        try:
            _inherit(task, lease)
        finally:
            os._exit(0)

    def wait_for_children(self) -> None:
        for pid in self._children:
            os.waitpid(pid, 0)


def _inherit(task: WorkloadTask, lease: Any) -> None:
    """In a child: use the parent's lease, release it, and acquire another. Only the last may succeed."""
    label = f"{task.label}.child"
    with Recorder(task.recorder.path, label) as recorder:
        mine = {"fence": lease.fence, "token": lease.token}
        with suppress(LeaseLost):
            lease.check()
            recorder.record("granted", lease.name, until_ns=trusted_until_ns(lease), **mine)
            if task.context.face.name == "blocking":
                lease.release()
        with suppress(HoldfastError):
            hf = holdfast.connect(task.context.url(task.label), label=label)
            requested_ns = time.monotonic_ns()
            with hf.lock(NAME, ttl=task.context.ttl_s, timeout=0) as own:
                until_ns = trusted_until_ns(own)
                recorder.record(
                    "granted", NAME, fence=own.fence, token=own.token, since_ns=requested_ns, until_ns=until_ns
                )
                recorder.record("released", NAME, fence=own.fence, token=own.token)
            hf.close(timeout=1)


def work(*, labels: Sequence[str], history: str, seed: str, mutant: str = "", **context: Any) -> None:
    """Run a worker process."""
    mutants.apply(mutant, Path(context["folder"]))
    shared = WorkerContext(**{**context, "folder": Path(context["folder"])})
    recorders = {label: Recorder(history, label) for label in labels}
    kind = WORKLOAD_TASKS[shared.workload]
    tasks = [kind(shared, label, recorders[label], random.Random(f"{seed}|{label}")) for label in labels]
    _warm_up(shared, labels[0])
    ControlThread(shared, tasks, random.Random(f"{seed}|storm")).start()
    StallDetector(recorders, min(_LATE_S, shared.ttl_s / 5)).start()
    before = _belongings()
    ready()
    shared.face.live([task.live for task in tasks])
    shared.wait_for_children()
    left = _left(before)
    recorders[labels[0]].record("leaked", "", value=len(left), detail=", ".join(left) or None)


class ControlThread(threading.Thread):
    """Reads the parent's requests, and injects the faults that they name."""

    def __init__(self, context: WorkerContext, tasks: list[WorkloadTask], rng: random.Random) -> None:
        super().__init__(name="campaign-ear", daemon=True)
        self._scene = context
        self._actors = tasks
        self._dice = rng
        self._numbers = itertools.count(1)
        # Opened once, before anything is counted, so that they do not count as leaks.
        self._storms = {f"{task.label}.storm": Recorder(task.recorder.path, f"{task.label}.storm") for task in tasks}

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
        """Block the interpreter by a C call that does not release it."""
        self._fault("gil stall", lambda: ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6)))

    def loop(self, seconds: str) -> None:
        self._fault("loop stall", lambda: self._scene.face.stall(float(seconds)))

    def storm(self) -> None:
        task = self._dice.choice(self._actors)
        label = f"{task.label}.storm"
        face = self._scene.face
        recorder = self._storms[label]

        async def attempt(client: Any, patience_s: float | None) -> None:
            lock = client.lock(NAME, ttl=self._scene.ttl_s, timeout=patience_s)
            requested_ns = time.monotonic_ns()
            async with face.holding(lock) as lease:
                mine = {"fence": lease.fence, "token": lease.token}
                recorder.record("granted", NAME, since_ns=requested_ns, until_ns=trusted_until_ns(lease), **mine)
                recorder.record("released", NAME, **mine)

        face.storm(self._dice, self._scene.url(task.label), label, attempt)

    def _fault(self, kind: str, strike: Any) -> None:
        """Record a fault and inject it: only the process itself knows when it began."""
        number = next(self._numbers)
        for task in self._actors:
            task.recorder.record("fault", task.label, value=number, detail=kind)
        try:
            strike()
        finally:
            for task in self._actors:
                task.recorder.record("healed", task.label, value=number, detail=kind)


class StallDetector(threading.Thread):
    """Records when this process did not run for a while, for whatever reason.

    A few short stalls may cost a short ttl, so that those are recorded, too.
    """

    def __init__(self, recorders: dict[str, Recorder], late_s: float) -> None:
        super().__init__(name="campaign-metronome", daemon=True)
        self._recorders = recorders
        self._late_s = late_s

    def run(self) -> None:
        while True:
            since_ns = time.monotonic_ns()
            time.sleep(_TICK_S)
            if time.monotonic_ns() - since_ns > (_TICK_S + self._late_s) * 1e9:
                for label, recorder in self._recorders.items():
                    recorder.record("fault", label, since_ns=since_ns, detail=MACHINE)


def _warm_up(context: WorkerContext, label: str) -> None:
    """Use everything once: what a process keeps for its life (modules, kernel locks of a file) is no leak."""

    async def once() -> None:
        client = await context.face.connect(context.url(label), f"{label}.warm", None)
        try:
            lock = client.lock(f"{NAME}/warm", ttl=5, timeout=20)
            async with context.face.holding(lock):
                await context.face.sleep(0)
        finally:
            await context.face.close(client)

    with suppress(HoldfastError):  # a fault may begin even here
        context.face.live([once])


def _belongings() -> tuple[Counter[str], int]:
    return Counter(thread.name for thread in threading.enumerate()), len(os.listdir("/proc/self/fd"))


def _left(before: tuple[Counter[str], int]) -> list[str]:
    """Return the threads and descriptors that were not there before, after waiting a moment for their end."""
    end = time.monotonic() + _END_S
    while True:
        threads, descriptors = _belongings()
        found = [f"{count} threads {name}" for name, count in sorted((threads - before[0]).items())]
        if descriptors > before[1]:
            found.append(f"{descriptors - before[1]} descriptors")
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)
