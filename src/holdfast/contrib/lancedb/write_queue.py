"""The queue of all writers of one process, and the thread that does their work.

The rule: the writers of a process never compete for the lease. The thread takes all jobs that are queued and does them
under one lease; consecutive appends are one commit. A single caller does not wait for others: the thread waits a moment
for more jobs only after several came together. Every caller gets its own answer, after the lease was released; no job
runs twice. A caller that leaves before its job began has changed nothing. No error of a job ends the thread.
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
from holdfast.contrib.lancedb.writer_lock import attempt
from holdfast.errors import Closed, LeaseLost, NotPermitted
from holdfast.observer import log

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.contrib.lancedb.maintenance import Maintenance
    from holdfast.contrib.lancedb.writer_lock import WriteAccess, WriterLock

Work = Callable[["WriteAccess"], Any]


class Job:
    """The job of one caller: rows to append, or any other work; and the future of its answer."""

    __slots__ = ("answer", "rows", "work")

    def __init__(self, work: Work | None = None, rows: pa.Table | None = None) -> None:
        self.work = work
        self.rows = rows
        self.answer: Future[Any] = Future()

    @property
    def size(self) -> int:
        return 1 if self.rows is None else max(1, self.rows.num_rows)


class Served(NamedTuple):
    """Jobs that were done together: an answer for each, or one error for all."""

    jobs: list[Job]
    answers: list[Any]
    error: BaseException | None


class WriteQueue:
    """First in, first out. `batch`: most rows under one lease; `queue`: most queued jobs, more callers are blocked."""

    def __init__(
        self,
        writer_lock: WriterLock,
        maintenance: Maintenance,
        *,
        batch: int,
        queue: int,
        window_s: float,
        hold_s: float,
    ) -> None:
        self._writer_lock = writer_lock
        self._maintenance = maintenance
        self._batch = batch
        self._queue = queue
        self._window_s = window_s
        self._hold_s = hold_s
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._blocked: deque[Future[None]] = deque()
        self._slots = queue
        self._siblings = 1
        self._closing = False
        self._pid = os.getpid()
        self.foreign_commits = 0
        self._thread = threading.Thread(target=self._serve_all, name="holdfast-lancedb", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of queued jobs."""
        return len(self._jobs)

    @property
    def blocked(self) -> int:
        """The number of callers that wait for a slot."""
        return len(self._blocked)

    def slot(self) -> Future[None] | None:
        """Take a slot in the queue (return `None`), or return a future that ends when one is free.

        The slots keep the number of queued jobs at `queue` or below.
        """
        self._refuse_child()
        self.refuse_inside("write")
        with self._changed:
            self._refuse_late()
            if self._slots > 0:
                self._slots -= 1
                return None
            self._blocked.append(Future())
            return self._blocked[-1]

    def refuse_inside(self, action: str) -> None:
        """Raise `NotPermitted` on the queue's own thread, which would wait for itself."""
        if threading.current_thread() is self._thread:
            raise NotPermitted(f"{action} from inside of a write", "it would wait for itself")

    def give_up(self, slot: Future[None]) -> None:
        """Stop waiting for a slot after an interrupt; pass on a slot that the queue assigned at the same moment."""
        if not slot.cancel():
            with self._changed:
                self._free_slot()

    def join(self, job: Job) -> Future[Any]:
        """Queue the job in the slot that the caller has; return the future of its answer."""
        with self._changed:
            try:
                self._refuse_late()
            except Closed:
                self._free_slot()
                raise
            self._jobs.append(job)
            self._changed.notify_all()
        return job.answer

    def wake(self) -> None:
        """Make the thread check whether periodic work is due."""
        with self._changed:
            self._changed.notify_all()

    def close(self, timeout_s: float | None) -> bool:
        """Refuse new callers, do the queued jobs, end the thread.

        Return false if the timeout ended first; the jobs that were left got `Closed`.
        """
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
        """Wait until the thread has finished its current job and ended."""
        if os.getpid() == self._pid:
            self._thread.join(timeout_s)

    def _refuse_late(self) -> None:
        if self._closing:
            raise Closed("store")

    def _refuse_child(self) -> None:
        """Raise `Closed` after a fork, before any lock is used: a lock held during a fork stays held in the child."""
        if os.getpid() != self._pid:
            raise Closed("store of the process before the fork")

    def _free_slot(self) -> None:
        while self._blocked:
            waiting = self._blocked.popleft()
            if waiting.set_running_or_notify_cancel():
                waiting.set_result(None)
                return
        self._slots += 1

    # The thread.

    def _serve_all(self) -> None:
        try:
            while (jobs := self._take()) is not None:
                groups = _grouped([job for job in jobs if not job.answer.cancelled()])
                while groups:
                    groups = self._serve(groups)
                if self._maintenance.is_due():
                    self._maintenance.run(self._writer_lock)
        finally:
            self._refuse_all()

    def _refuse_all(self) -> None:
        """Give `Closed` to every queued job and blocked caller, because the thread has ended."""
        with self._changed:
            self._closing = True
            jobs, self._jobs = self._jobs, deque()
            blocked, self._blocked = self._blocked, deque()
        for waiting in (*(job.answer for job in jobs), *blocked):
            if waiting.set_running_or_notify_cancel():
                waiting.set_exception(Closed("store"))

    def _take(self) -> list[Job] | None:
        """Return the next jobs; an empty list if periodic work is due; `None` at the end."""
        with self._changed:
            while not (self._jobs or self._closing or self._maintenance.is_due()):
                self._changed.wait(self._maintenance.due_in_s())
            if self._closing and not self._jobs:
                return None
            if self._siblings > 1 and self._jobs:
                self._changed.wait_for(lambda: len(self._jobs) >= self._siblings or self._closing, self._window_s)
            taken: list[Job] = []
            size = 0
            while self._jobs and (not taken or size + self._jobs[0].size <= self._batch):
                taken.append(self._jobs.popleft())
                size += taken[-1].size
                self._free_slot()
            self._siblings = len(taken)
        return taken

    def _serve(self, groups: list[list[Job]]) -> list[list[Job]]:
        """Do as many groups as fit into one hold of the lease; return the groups that have not begun."""
        served: list[Served] = []
        trouble: BaseException | None = None
        try:
            with self._writer_lock.entered() as access:
                until = time.monotonic() + self._hold_s
                for group in groups:
                    if served and (not access.is_valid() or time.monotonic() > until):
                        break
                    served.append(_served(access, _begun(group)))
                self._count(access, served)
        except BaseException as error:
            trouble = error
        if not served:  # the lease was not acquired
            served = [Served(_begun(group), [], trouble) for group in groups]
        for each in served:
            _answer(each, trouble)
        return groups[len(served) :]

    def _count(self, access: WriteAccess, served: list[Served]) -> None:
        # Without a lock the commits cannot be counted.
        self._maintenance.count(len(access.commits) if access.lock else len(served))
        foreign_commits = access.foreign_commits()
        if foreign_commits:
            self.foreign_commits += foreign_commits
            uri = self._writer_lock.uri
            log.warning("holdfast: %s versions of %s were committed without the writer lock", foreign_commits, uri)


def _grouped(jobs: list[Job]) -> list[list[Job]]:
    """Group consecutive appends; every other job is a group of its own."""
    groups: list[list[Job]] = []
    for job in jobs:
        if groups and job.rows is not None and groups[-1][-1].rows is not None:
            groups[-1].append(job)
        else:
            groups.append([job])
    return groups


def _begun(jobs: list[Job]) -> list[Job]:
    """Return the jobs that their callers have not cancelled; from now on they cannot be cancelled."""
    return [job for job in jobs if job.answer.set_running_or_notify_cancel()]


def _served(access: WriteAccess, jobs: list[Job]) -> Served:
    if not jobs:
        return Served([], [], None)
    try:
        if jobs[0].rows is None:
            assert jobs[0].work is not None
            return Served(jobs, [attempt(access, jobs[0].work)], None)
        rows = [job.rows for job in jobs if job.rows is not None]
        written = attempt(access, lambda access: writing.append(access, rows))
        return Served(jobs, [written._replace(rows=each.num_rows) for each in rows], None)
    except StopIteration as error:
        # An asyncio future refuses this exception.
        return Served(jobs, [], RuntimeError(f"the work raised {error!r}"))
    except BaseException as error:  # also SystemExit: it belongs to the caller of this job
        return Served(jobs, [], error)


def _answer(served: Served, trouble: BaseException | None) -> None:
    """Give each caller its answer. After a lost lease all of them get `LeaseLost`, with the result of their job."""
    for number, job in enumerate(served.jobs):
        error = served.error
        result = served.answers[number] if served.answers else None
        if isinstance(trouble, LeaseLost) and not isinstance(error, LeaseLost):
            lost = copy.copy(trouble)
            lost.result, lost.__cause__ = result, error
            error = lost
        elif error is not None and len(served.jobs) > 1:
            error = _copied(error)
        if error is None:
            job.answer.set_result(result)
        else:
            job.answer.set_exception(error)


def _copied(error: BaseException) -> BaseException:
    """Return a copy of the error: one object raised in many threads would collect all their tracebacks."""
    try:
        copied = copy.copy(error)
    except Exception:
        return error  # this error cannot be copied
    copied.__cause__ = error.__cause__
    return copied
