"""The scenario of the demonstration: work, a kill, a freeze, a wake-up, work again, the end.

The rule: the scenario only starts processes, reads the history and sends signals. It takes no part in the locking, and
it knows only the recorded events.
"""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.demo.narration import FREEZE, SCENARIO, WAKE, Narration, WorkerHistory
from holdfast.demo.worker import LOCK, TTL_S, history_file
from holdfast.testing import History, WorkerProcesses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.demo.view import View
    from holdfast.testing import WorkerProcess

NAMES = ("ann", "bob", "cleo", "dan", "eve")

_POLL_S = 0.01
_START_S = 10.0
_STEP_S = 10.0
_WORK_S = 2.2
# When a worker is between reading and writing the counter: a fault does the most harm then, and no file lock is held.
_MID_WORK_NS = (30_000_000, 120_000_000)


class DemoFailed(Exception):
    """The demonstration did not reach its end; the text is the reason."""


class Scenario:
    """One run of the demonstration."""

    def __init__(self, url: str, folder: Path, view: View, *, guarded: bool) -> None:
        self._url = url
        self._folder = folder
        self._view = view
        self._guarded = guarded
        self._workers: dict[str, WorkerProcess] = {}
        self.history = History(history_file(folder))
        self.narration = Narration(self.history.path, NAMES)

    def play(self) -> None:
        """Run all steps; end every worker, however the steps end."""
        with self.history, WorkerProcesses() as workers:
            self._recorder = self.history.recorder(SCENARIO)
            self._start(workers)
            self._let_work("all workers count")
            self._kill()
            self._let_work("the others continue")
            self._freeze_and_wake()
            self._let_work("the woken worker waits for the lock again")
            self._stop()

    def _start(self, workers: WorkerProcesses) -> None:
        for name in NAMES:
            with _uninterrupted():
                self._workers[name] = workers.start(
                    "holdfast.demo.worker:work",
                    url=self._url,
                    folder=str(self._folder),
                    label=name,
                    guarded=self._guarded,
                )
        for worker in self._workers.values():
            worker.wait_ready(_START_S)

    def _let_work(self, what: str) -> None:
        self._view.begin_step(what)
        end = time.monotonic() + _WORK_S
        self._watch(lambda: time.monotonic() >= end, what)

    def _kill(self) -> None:
        self._view.begin_step("the next holder is killed")
        victim = self._next_at_work()
        worker = self._workers.pop(victim.name)
        died_ns = self._recorder.died(victim.name, worker.pid, "SIGKILL").at_ns
        worker.kill()
        self._watch(lambda: self._taken_over(died_ns, victim), "a successor of the killed worker")

    def _freeze_and_wake(self) -> None:
        self._view.begin_step(f"the next holder is frozen, for longer than its ttl of {TTL_S:g} s")
        victim = self._next_at_work()
        worker = self._workers[victim.name]
        froze_ns = self._recorder.record("fault", LOCK, detail=f"{FREEZE} {victim.name}").at_ns
        worker.freeze()
        self._watch(lambda: self._taken_over(froze_ns, victim), "a successor of the frozen worker")
        self._watch(lambda: self._wrote_since(froze_ns, victim), "the successor to write")
        self._view.begin_step("the frozen worker is woken, and continues its work")
        woke_ns = self._recorder.record("fault", LOCK, detail=f"{WAKE} {victim.name}").at_ns
        worker.thaw()
        self._watch(lambda: self._recorded("lost", woke_ns, victim), "the loss of the woken worker")

    def _stop(self) -> None:
        self._view.begin_step("all workers stop")
        for worker in self._workers.values():
            worker.send_line("stop")
        self._watch(
            lambda: not any(worker.alive for worker in self._workers.values()), "the end of the workers", ends=True
        )
        self.narration.update()

    def _next_at_work(self) -> WorkerHistory:
        """Wait until a worker is in the middle of its work while others wait; return it."""
        found: list[WorkerHistory] = []

        def mid_work() -> bool:
            holder = self.narration.holder()
            if holder is None or self.narration.waiting() < 2:
                return False
            age_ns = time.monotonic_ns() - holder.since_ns
            if _MID_WORK_NS[0] <= age_ns <= _MID_WORK_NS[1]:
                found.append(holder)
            return bool(found)

        self._watch(mid_work, "a holder while others wait")
        return found[0]

    def _taken_over(self, since_ns: int, victim: WorkerHistory) -> bool:
        return any(
            event.kind == "granted" and event.at_ns > since_ns and event.worker != victim.name
            for event in self.narration.events
        )

    def _wrote_since(self, since_ns: int, victim: WorkerHistory) -> bool:
        return any(
            event.kind == "write" and event.at_ns > since_ns and event.worker != victim.name
            for event in self.narration.events
        )

    def _recorded(self, kind: str, since_ns: int, worker: WorkerHistory) -> bool:
        return any(
            event.kind == kind and event.at_ns > since_ns and event.worker == worker.name
            for event in self.narration.events
        )

    def _watch(self, done: Callable[[], bool], what: str, *, ends: bool = False) -> None:
        """Show what happens until `done`. Raises `DemoFailed` after a timeout, or if a worker ends too early."""
        deadline = time.monotonic() + _STEP_S
        while True:
            self.narration.update()
            self._view.show(self.narration)
            if done():
                return
            if time.monotonic() >= deadline:
                raise DemoFailed(f"waited {_STEP_S:g} s for {what}")
            self._check_workers(may_end=ends)
            time.sleep(_POLL_S)

    def _check_workers(self, *, may_end: bool) -> None:
        for name, worker in self._workers.items():
            if worker.alive or (may_end and worker.wait() == 0):
                continue
            raise DemoFailed(f"{name} ended by itself:\n{worker.output()}")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay signals to the end of the block, so that a new process is registered before a signal can end this one."""
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _frame: received.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt
