"""Run one round: start the workers, inject the faults of the schedule, heal them, and end the workers.

The runner checks nothing. It counts a fault that this machine cannot inject as not run.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import holdfast
from chaos.injectors import INJECTORS
from chaos.schedule import HOLDER, KINDS, SERVER, WAITER, draw
from chaos.workload import NAME
from holdfast.testing.guard import GuardedFile
from holdfast.testing.history import History, Tail
from holdfast.testing.processes import WorkerProcesses
from tests.support import wallclock
from tests.support.fault_windows import ALL_WORKERS, MACHINE
from tests.support.faults import Faults
from tests.support.places import RedisPlace, open_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from chaos.rounds import Round
    from chaos.schedule import Fault
    from holdfast.testing.history import HistoryEvent
    from holdfast.testing.processes import WorkerProcess

    Enough = Callable[[list[HistoryEvent]], bool]

_LOOK_S = 0.02
_LATE_S = 0.25
_READY_S = 30.0
_END_S = 40.0
_MARK_S = 10.0
_STATES = {
    "requested": WAITER,
    "waiting": WAITER,
    "granted": HOLDER,
    "released": "",
    "lost": "",
    "refused": "",
    "died": "",
}


@dataclass
class RoundResult:
    """The result of a round: everything that the checks need."""

    round: Round
    events: list[HistoryEvent] = field(default_factory=list)
    counter: int = 0
    appended: tuple[int, ...] = ()
    injected: Counter[str] = field(default_factory=Counter)
    not_run: Counter[str] = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)
    seconds: float = 0.0


class RoundRunner:
    """The place, the workers, the faults and the history of one round."""

    def __init__(self, round_: Round, folder: Path, mutant: str = "", *, ends: bool = True) -> None:
        self.round = round_
        self._mutant = mutant
        self._ends = ends
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.place = open_place(round_.engine, folder / "place")
        self._history = History(folder / "history.jsonl")
        self._recorder = self._history.recorder("runner")
        self.faults = Faults(self._recorder, self.place)
        self._tail = Tail(self._history.path)
        self._states: dict[str, str] = {}
        self._busy: set[str] = set()
        self._all = WorkerProcesses()
        self.workers: dict[str, WorkerProcess] = {}
        self.result = RoundResult(round_)
        self._look_at = 0.0

    @property
    def redis(self) -> RedisPlace:
        assert isinstance(self.place, RedisPlace)
        return self.place

    def run(self, enough: Enough | None = None) -> RoundResult:
        """Run the round and return its result; it ends early once `enough` returns True for its history."""
        began = time.monotonic()
        try:
            self._open()
            if not self._run_schedule(enough) and not self._calm(enough):
                self._end()
                self._look_around()
        finally:
            self._close()
        self.result.seconds = time.monotonic() - began
        return self.result

    # Workers.

    def start(self, *labels: str) -> None:
        """Start a process for these workers; it begins to work when it is ready."""
        round_ = self.round
        worker = self._all.start(
            "chaos.worker:work",
            env=self.place.env(labels[0]),
            labels=labels,
            history=self._history.path,
            seed=f"{round_.seed}|{round_.name}",
            mutant=self._mutant,
            folder=self._folder,
            urls={label: self.place.url(label) for label in round_.labels},
            face=round_.face,
            workload=round_.workload,
            ttl_s=round_.ttl,
            guarded=round_.work.guarded,
            long=round_.long,
        )
        for label in labels:
            self.workers[label] = worker

    def _open(self) -> None:
        labels = self.round.labels
        for group in [labels] if self.place.one_process else [(label,) for label in labels]:
            self.start(*group)
        for worker in set(self.workers.values()):
            worker.wait_ready(_READY_S)

    # Faults.

    def _run_schedule(self, enough: Enough | None) -> bool:
        """Inject the faults of the schedule. Return True if `enough` ended it early."""
        began = time.monotonic()
        numbers = itertools.count()
        due: list[tuple[float, int, Fault | None, Iterator[float] | None, str]] = [
            (fault.at_s, next(numbers), fault, None, "") for fault in draw(self.round)
        ]
        heapq.heapify(due)
        try:
            while (now := time.monotonic() - began) < self.round.seconds or any(item[3] for item in due):
                self._follow()
                if self._is_enough(enough):
                    return True
                while due and due[0][0] <= now:
                    _, _, fault, injection, label = heapq.heappop(due)
                    if injection is None and fault is not None:
                        injection, label = self._begin(fault)
                    waits_s = None if injection is None else next(injection, None)
                    if waits_s is not None:
                        heapq.heappush(due, (time.monotonic() - began + waits_s, next(numbers), None, injection, label))
                    elif injection is not None:
                        self._busy.discard(label)
                self._sleep()
        finally:
            for item in due:
                if item[3] is not None:
                    item[3].close()  # type: ignore[attr-defined]
        return False

    def _begin(self, fault: Fault) -> tuple[Iterator[float] | None, str]:
        if KINDS[fault.kind].clock and not wallclock.available():
            self.result.not_run[f"{fault.kind}: no C compiler"] += 1
            return None, ""
        label = self._aim(fault.target)
        if label is None:
            self.result.not_run["no worker was without a fault"] += 1
            return None, ""
        self._busy.add(label)
        self.result.injected[fault.kind] += 1
        return INJECTORS[fault.kind](self, label, fault), label

    def _aim(self, target: str) -> str | None:
        """Return the label of the target, or None: a role is looked up now; a worker has one fault at a time."""
        if target == SERVER:
            return None if SERVER in self._busy else SERVER
        free = [label for label in self.round.labels if label not in self._busy and self.workers[label].alive]
        if self.place.one_process and self._busy:
            return None
        if target in free:
            return target
        suited = [label for label, state in self._states.items() if state == target and label in free]
        # Of several workers that believe they hold, the last is right; of several that wait, the first is next.
        suited = suited[::-1] if target == HOLDER else suited
        return next(iter(suited or free), None)

    def holds(self, label: str) -> bool:
        """Return whether this worker has recorded a grant and not yet its end."""
        return self._states.get(label) == HOLDER

    def _follow(self) -> None:
        for event in self._tail.new():
            if event.kind in _STATES and event.worker in self.workers:
                state = _STATES[event.kind]
                if self._states.get(event.worker) != state:
                    self._states.pop(event.worker, None)  # the dict has the order of the changes
                    self._states[event.worker] = state

    def _sleep(self) -> None:
        """Sleep for a moment; a late wake-up is a fault of all workers, because the links run in this process."""
        since_ns = time.monotonic_ns()
        time.sleep(_LOOK_S)
        if time.monotonic_ns() - since_ns > (_LOOK_S + _LATE_S) * 1e9:
            self._recorder.record("fault", ALL_WORKERS, since_ns=since_ns, detail=MACHINE)

    def _calm(self, enough: Enough | None) -> bool:
        """Let the workers go on without faults. Return True if `enough` ended it early."""
        end = time.monotonic() + self.round.calm_s
        while time.monotonic() < end:
            if self._is_enough(enough):
                return True
            self._sleep()
        return self._is_enough(enough, now=True)

    def _is_enough(self, enough: Enough | None, *, now: bool = False) -> bool:
        """Call `enough` twice a second, or less often if it takes long: the workers need the machine, too."""
        began = time.monotonic()
        if enough is None or (began < self._look_at and not now):
            return False
        seen = enough(self._history.read())
        spent_s = time.monotonic() - began
        self._look_at = began + max(0.5, 6 * spent_s)
        return seen

    # The end.

    def _end(self) -> None:
        """Stop all workers; a worker that does not end is reported, and killed."""
        if not self._ends:
            return  # a mutant need not be able to end
        for worker in set(self.workers.values()):
            if worker.alive:
                worker.send_line("stop")
        end = time.monotonic() + _END_S
        while any(worker.alive for worker in self.workers.values()) and time.monotonic() < end:
            self._sleep()
        for label, worker in self.workers.items():
            if worker.alive:
                self.result.troubles.append(f"{label} did not end within {_END_S:g} s")
            elif worker.wait() != 0:
                lines = worker.output().strip().splitlines()[-8:]
                self.result.troubles.append("\n".join([f"{label} ended with code {worker.wait()}:", *lines]))

    def _look_around(self) -> None:
        if self._ends:
            left = self.place.left() + ([] if self.place.one_process else self._still_there())
            self._recorder.record("leaked", "", value=len(left), detail=", ".join(left) or None)
        counter = GuardedFile(self._folder / "counter.json").read().value
        self.result.counter = counter
        self.result.appended = tuple(GuardedFile(self._folder / "list.json", initial=[]).read().value)

    def _still_there(self) -> list[str]:
        """Return holders and waiters after all workers have ended; those of killed ones last for ttl and heartbeat."""
        end = time.monotonic() + self.round.ttl + _MARK_S
        with holdfast.connect(self.place.url("runner")) as hf:
            while (standing := hf.show(NAME)).holder is not None or standing.waiters:
                if time.monotonic() > end:
                    return [f"{standing.holder} as the holder and {len(standing.waiters)} waiters"]
                time.sleep(_LOOK_S)
        return []

    def _close(self) -> None:
        self._all.close()
        self.result.events = self._history.read()
        self._history.close()
        self.place.close()
