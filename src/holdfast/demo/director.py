"""The course of the demonstration: work, a kill, a freeze, a wake-up, work again, the end.

The rule: the director only starts, watches, and sends signals, as an unlucky day would. It takes no part in the
locking, and it knows what happens from the history alone.
"""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.demo.clerk import LOCK, TTL_S, history_file
from holdfast.demo.story import DIRECTOR, FREEZE, WAKE, Figure, Story
from holdfast.testing import History, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.demo.view import View
    from holdfast.testing import Worker

NAMES = ("ann", "bob", "cleo", "dan", "eve")

_LOOK_S = 0.01
_START_S = 10.0
_SCENE_S = 10.0
_CALM_S = 2.2
# Between reading the counter and writing it; there a fault tells the most, and the files' locks are free.
_MID_WORK_NS = (30_000_000, 120_000_000)


class Stalled(Exception):
    """The demonstration did not get to its end, and this is why."""


class Director:
    """One performance."""

    def __init__(self, url: str, folder: Path, view: View, *, guarded: bool) -> None:
        self._url = url
        self._folder = folder
        self._view = view
        self._guarded = guarded
        self._workers: dict[str, Worker] = {}
        self.history = History(history_file(folder))
        self.story = Story(self.history.path, NAMES)

    def play(self) -> None:
        """From the first process to the last; whatever happens, none is left behind."""
        with self.history, Workers() as workers:
            self._recorder = self.history.recorder(DIRECTOR)
            self._start(workers)
            self._calm("everybody works")
            self._kill()
            self._calm("the others go on")
            self._freeze_and_wake()
            self._calm("the woken one is back in the queue")
            self._stop()

    def _start(self, workers: Workers) -> None:
        for name in NAMES:
            with _undisturbed():
                self._workers[name] = workers.start(
                    "holdfast.demo.clerk:work",
                    url=self._url,
                    folder=str(self._folder),
                    label=name,
                    guarded=self._guarded,
                )
        for worker in self._workers.values():
            worker.wait_ready(_START_S)

    def _calm(self, what: str) -> None:
        self._view.scene(what)
        end = time.monotonic() + _CALM_S
        self._watch(lambda: time.monotonic() >= end, what)

    def _kill(self) -> None:
        self._view.scene("whoever holds next is killed")
        victim = self._next_at_work()
        worker = self._workers.pop(victim.name)
        died_ns = self._recorder.died(victim.name, worker.pid, "SIGKILL").at_ns
        worker.kill()
        self._watch(lambda: self._taken_over(died_ns, victim), "the lock of the killed one to be taken over")

    def _freeze_and_wake(self) -> None:
        self._view.scene(f"whoever holds next is frozen, longer than its ttl of {TTL_S:g} s")
        victim = self._next_at_work()
        worker = self._workers[victim.name]
        froze_ns = self._recorder.record("fault", LOCK, detail=f"{FREEZE} {victim.name}").at_ns
        worker.freeze()
        self._watch(lambda: self._taken_over(froze_ns, victim), "the lock of the frozen one to be taken over")
        self._watch(lambda: self._wrote_since(froze_ns, victim), "the successor to write")
        self._view.scene("the frozen one is woken, and goes on as if nothing had been")
        woke_ns = self._recorder.record("fault", LOCK, detail=f"{WAKE} {victim.name}").at_ns
        worker.thaw()
        self._watch(lambda: self._told("lost", woke_ns, victim), "the woken one to learn of its loss")

    def _stop(self) -> None:
        self._view.scene("everybody comes to an end")
        for worker in self._workers.values():
            worker.send_line("stop")
        self._watch(lambda: not any(worker.alive for worker in self._workers.values()), "the workers to end", ends=True)
        self.story.update()

    def _next_at_work(self) -> Figure:
        """Wait until somebody holds, is in the middle of its work, and others wait."""
        found: list[Figure] = []

        def mid_work() -> bool:
            holder = self.story.holder()
            if holder is None or self.story.waiting() < 2:
                return False
            age_ns = time.monotonic_ns() - holder.since_ns
            if _MID_WORK_NS[0] <= age_ns <= _MID_WORK_NS[1]:
                found.append(holder)
            return bool(found)

        self._watch(mid_work, "somebody to hold while others wait")
        return found[0]

    def _taken_over(self, since_ns: int, victim: Figure) -> bool:
        return any(
            event.kind == "granted" and event.at_ns > since_ns and event.worker != victim.name
            for event in self.story.events
        )

    def _wrote_since(self, since_ns: int, victim: Figure) -> bool:
        return any(
            event.kind == "write" and event.at_ns > since_ns and event.worker != victim.name
            for event in self.story.events
        )

    def _told(self, kind: str, since_ns: int, figure: Figure) -> bool:
        return any(
            event.kind == kind and event.at_ns > since_ns and event.worker == figure.name for event in self.story.events
        )

    def _watch(self, done: Callable[[], bool], what: str, *, ends: bool = False) -> None:
        """Show what happens until `done`; `Stalled` if that does not come, or if a worker ends out of turn."""
        give_up = time.monotonic() + _SCENE_S
        while True:
            self.story.update()
            self._view.show(self.story)
            if done():
                return
            if time.monotonic() >= give_up:
                raise Stalled(f"waited {_SCENE_S:g} s for {what}")
            self._mind_the_workers(may_end=ends)
            time.sleep(_LOOK_S)

    def _mind_the_workers(self, *, may_end: bool) -> None:
        for name, worker in self._workers.items():
            if worker.alive or (may_end and worker.wait() == 0):
                continue
            raise Stalled(f"{name} ended by itself:\n{worker.output()}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """An interruption waits for the end of the block: a process that was just started must become known."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _frame: came.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, habit in before.items():
            signal.signal(number, habit)
    if came:
        raise KeyboardInterrupt
