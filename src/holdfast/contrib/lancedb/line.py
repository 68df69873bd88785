"""The line in which all writers of one process stand, and the one thread that serves it.

The rule: writers of a process never fight each other for the lease. What stands in the line when the thread comes for
more is served under one lease, and appends that follow each other are one commit. Nobody is made to wait for company:
a lone caller is served at once; only after several came together does the thread wait a moment for them to come again.
Every caller gets its own answer, after the lease was given back; nothing is ever done twice. Whoever leaves before its
work has begun has done nothing. No work, whatever it raises, ends the thread that serves all the others.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.contrib.lancedb import writing
from holdfast.contrib.lancedb.gate import attempt
from holdfast.errors import Closed, LeaseLost, NotPermitted
from holdfast.observer import log

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.contrib.lancedb.gate import Gate, Passage
    from holdfast.contrib.lancedb.upkeep import Upkeep

Work = Callable[["Passage"], Any]


class Job:
    """What one caller wants: rows to append, or any other work; and where it looks for its answer."""

    __slots__ = ("answer", "rows", "work")

    def __init__(self, work: Work | None = None, rows: pa.Table | None = None) -> None:
        self.work = work
        self.rows = rows
        self.answer: Future[Any] = Future()

    @property
    def size(self) -> int:
        return 1 if self.rows is None else max(1, self.rows.num_rows)


class Served(NamedTuple):
    """Jobs that were done together, and what came of it: an answer for each, or one error for all."""

    jobs: list[Job]
    answers: list[Any]
    error: BaseException | None


class Line:
    """First come, first served. `batch`: most entries under one lease; `queue`: most callers that wait inside."""

    def __init__(self, gate: Gate, upkeep: Upkeep, *, batch: int, queue: int, window_s: float, hold_s: float) -> None:
        self._gate = gate
        self._upkeep = upkeep
        self._batch = batch
        self._queue = queue
        self._window_s = window_s
        self._hold_s = hold_s
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._outside: deque[Future[None]] = deque()
        self._places = queue
        self._siblings = 1
        self._closing = False
        self._pid = os.getpid()
        self.overtaken = 0
        self._thread = threading.Thread(target=self._serve_all, name="holdfast-lancedb", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many callers stand inside."""
        return len(self._jobs)

    @property
    def outside(self) -> int:
        """How many callers wait for a place."""
        return len(self._outside)

    def place(self) -> Future[None] | None:
        """A place in the line, or what to wait for until there is one: so that no more than `queue` wait inside."""
        self._refuse_child()
        self.refuse_inside("write")
        with self._changed:
            self._refuse_late()
            if self._places > 0:
                self._places -= 1
                return None
            self._outside.append(Future())
            return self._outside[-1]

    def refuse_inside(self, what: str) -> None:
        """What the thread that serves the line would wait for itself to do."""
        if threading.current_thread() is self._thread:
            raise NotPermitted(f"{what} from inside of a write", "it would wait for itself")

    def give_up(self, place: Future[None]) -> None:
        """Whoever waited for a place and was interrupted leaves; a place that came at that very moment goes on."""
        if not place.cancel():
            with self._changed:
                self._free_place()

    def join(self, job: Job) -> Future[Any]:
        """Stand in the line, with the place that one has."""
        with self._changed:
            try:
                self._refuse_late()
            except Closed:
                self._free_place()
                raise
            self._jobs.append(job)
            self._changed.notify_all()
        return job.answer

    def stir(self) -> None:
        """Have the thread look whether something is due."""
        with self._changed:
            self._changed.notify_all()

    def close(self, timeout_s: float | None) -> bool:
        """Refuse new callers, serve those inside, end. False if patience ended first; who was left got `Closed`."""
        if os.getpid() != self._pid:
            return True
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return True
        self._refuse_all()
        return False

    def wait_ended(self, timeout_s: float | None) -> None:
        """Until the thread is gone, with what it had in hand."""
        if os.getpid() == self._pid:
            self._thread.join(timeout_s)

    def _refuse_late(self) -> None:
        if self._closing:
            raise Closed("store")

    def _refuse_child(self) -> None:
        """Before any lock is touched: one that was held when the process was forked is held in the child for ever."""
        if os.getpid() != self._pid:
            raise Closed("store of the process before the fork")

    def _free_place(self) -> None:
        while self._outside:
            waiting = self._outside.popleft()
            if waiting.set_running_or_notify_cancel():
                waiting.set_result(None)
                return
        self._places += 1

    # The thread.

    def _serve_all(self) -> None:
        try:
            while (jobs := self._take()) is not None:
                groups = _grouped([job for job in jobs if not job.answer.cancelled()])
                while groups:
                    groups = self._serve(groups)
                if self._upkeep.is_due():
                    self._upkeep.run(self._gate)
        finally:
            self._refuse_all()

    def _refuse_all(self) -> None:
        """Whoever is left when nobody serves any more is told so, and waits for nothing."""
        with self._changed:
            self._closing = True
            jobs, self._jobs = self._jobs, deque()
            outside, self._outside = self._outside, deque()
        for waiting in (*(job.answer for job in jobs), *outside):
            if waiting.set_running_or_notify_cancel():
                waiting.set_exception(Closed("store"))

    def _take(self) -> list[Job] | None:
        """The next jobs; none if something else is due; `None` at the end."""
        with self._changed:
            while not (self._jobs or self._closing or self._upkeep.is_due()):
                self._changed.wait(self._upkeep.due_in_s())
            if self._closing and not self._jobs:
                return None
            if self._siblings > 1 and self._jobs:
                self._changed.wait_for(lambda: len(self._jobs) >= self._siblings or self._closing, self._window_s)
            taken: list[Job] = []
            size = 0
            while self._jobs and (not taken or size + self._jobs[0].size <= self._batch):
                taken.append(self._jobs.popleft())
                size += taken[-1].size
                self._free_place()
            self._siblings = len(taken)
        return taken

    def _serve(self, groups: list[list[Job]]) -> list[list[Job]]:
        """As many as fit into one hold of the lease; gives back what has not begun."""
        served: list[Served] = []
        trouble: BaseException | None = None
        try:
            with self._gate.entered() as passage:
                until = time.monotonic() + self._hold_s
                for group in groups:
                    if served and (not passage.stands() or time.monotonic() > until):
                        break
                    served.append(_served(passage, _begun(group)))
                self._count(passage, served)
        except BaseException as error:
            trouble = error
        if not served:  # nobody was let in
            served = [Served(_begun(group), [], trouble) for group in groups]
        for each in served:
            _answer(each, trouble)
        return groups[len(served) :]

    def _count(self, passage: Passage, served: list[Served]) -> None:
        # Without a lock nobody sees the commits.
        self._upkeep.count(len(passage.commits) if passage.lock else len(served))
        overtaken = passage.overtaken()
        if overtaken:
            self.overtaken += overtaken
            log.warning("holdfast: %s versions of %s were made past its gate", overtaken, self._gate.uri)


def _grouped(jobs: list[Job]) -> list[list[Job]]:
    """Appends that follow each other are done together; everything else by itself."""
    groups: list[list[Job]] = []
    for job in jobs:
        if groups and job.rows is not None and groups[-1][-1].rows is not None:
            groups[-1].append(job)
        else:
            groups.append([job])
    return groups


def _begun(jobs: list[Job]) -> list[Job]:
    """Those whose callers are still there; from now on they wait for the end."""
    return [job for job in jobs if job.answer.set_running_or_notify_cancel()]


def _served(passage: Passage, jobs: list[Job]) -> Served:
    if not jobs:
        return Served([], [], None)
    try:
        if jobs[0].rows is None:
            assert jobs[0].work is not None
            return Served(jobs, [attempt(passage, jobs[0].work)], None)
        rows = [job.rows for job in jobs if job.rows is not None]
        written = attempt(passage, lambda passage: writing.append(passage, rows))
        return Served(jobs, [written._replace(rows=each.num_rows) for each in rows], None)
    except StopIteration as error:
        # An event loop takes any error but this one.
        return Served(jobs, [], RuntimeError(f"the work raised {error!r}"))
    except BaseException as error:  # also one that ends programs: it is for whoever asked for this work
        return Served(jobs, [], error)


def _answer(served: Served, trouble: BaseException | None) -> None:
    """Tell each caller. The loss of a lease is told to all who were served under it, with what became of their work."""
    for number, job in enumerate(served.jobs):
        error = served.error
        result = served.answers[number] if served.answers else None
        if isinstance(trouble, LeaseLost) and not isinstance(error, LeaseLost):
            lost = copy.copy(trouble)
            lost.result, lost.__cause__ = result, error
            error = lost
        elif error is not None and len(served.jobs) > 1:
            error = _own(error)
        if error is None:
            job.answer.set_result(result)
        else:
            job.answer.set_exception(error)


def _own(error: BaseException) -> BaseException:
    """An error of one's own: the same one raised in many threads would gather the traces of all."""
    try:
        own = copy.copy(error)
    except Exception:
        return error  # of a kind that cannot be copied
    own.__cause__ = error.__cause__
    return own
