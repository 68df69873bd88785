"""One worker process of the demonstration: it acquires the lock, counts, releases, and rests.

Counting stands for real work: the worker reads a value, waits, and writes the value plus one. A process that is frozen
in between comes back with a stale value, and then only the fence at the resource can stop it.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import holdfast
from holdfast.errors import Fenced, LeaseLost
from holdfast.observer import Event
from holdfast.testing import GuardedFile, Recorder, read_line, ready

if TYPE_CHECKING:
    from holdfast.blocking import Lease

LOCK = "demo/counter"
TTL_S = 2.0
COUNTS = 2
COUNT_S = 0.16
REST_S = (0.1, 0.45)


class DemoWorker:
    """A worker: one client, one counter file, one recorder."""

    def __init__(self, url: str, folder: Path, label: str, *, guarded: bool) -> None:
        self._recorder = Recorder(history_file(folder), label)
        self._counter = GuardedFile(counter_file(folder))
        self._guarded = guarded
        self._held: Lease | None = None
        self._recording = threading.Lock()
        self._hf = holdfast.connect(url, label=label, observer=self._observe)
        self._lock = self._hf.lock(LOCK, ttl=TTL_S)

    def take_turns(self) -> None:
        """Acquire, count, release and rest until the parent sends "stop" or is gone."""
        while not _must_stop(random.uniform(*REST_S)):  # noqa: S311 - a rest, not a secret
            self._turn()
        self._hf.close()
        self._recorder.close()

    def _turn(self) -> None:
        requested_ns = time.monotonic_ns()
        self._recorder.record("requested", LOCK)
        try:
            with self._lock as lease:
                self._held = lease
                fence, token = lease.fence, lease.token
                self._recorder.record(
                    "granted", LOCK, fence=fence, token=token, since_ns=requested_ns, until_ns=_trusted_until_ns(lease)
                )
                for _ in range(COUNTS):
                    self._count(lease)
                self._record_end("released", fence, token)
        except LeaseLost as lost:
            # The block raises LeaseLost; the error of the work, here the refused write, is its cause.
            why = f"{lost.reason}, after {type(lost.__cause__).__name__}" if lost.__cause__ else lost.reason
            self._record_end("lost", fence, token, why)
        finally:
            self._held = None

    def _count(self, lease: Lease) -> None:
        fence, token = lease.fence, lease.token
        value_read = self._counter.guarded_read(fence, token) if self._guarded else self._counter.read().value
        time.sleep(COUNT_S)
        sent_ns = time.monotonic_ns()
        try:
            value = self._store(lease, value_read + 1)
        except Fenced as refusal:
            detail = f"the newest is {refusal.newest}"
            self._recorder.record(
                "write", LOCK, fence=fence, token=token, since_ns=sent_ns, accepted=False, detail=detail
            )
            raise
        self._recorder.record("write", LOCK, fence=fence, token=token, since_ns=sent_ns, value=value, accepted=True)

    def _store(self, lease: Lease, value: int) -> int:
        if self._guarded:
            self._counter.write(lease.fence, lease.token, lambda _: value)
        else:
            self._counter.unguarded_write(lambda _: value)
        return value

    def _record_end(self, kind: Literal["released", "lost"], fence: int, token: str, why: str | None = None) -> None:
        """Record the end of the lease, so that no event of a late renewal follows it in the history."""
        with self._recording:
            self._held = None
            self._recorder.record(kind, LOCK, fence=fence, token=token, detail=why)

    def _observe(self, event: Event) -> None:
        with self._recording:
            lease = self._held
            if event.kind.startswith("renewed") and lease is not None and lease.fence == event.fence:
                until_ns = _trusted_until_ns(lease)
                self._recorder.record("renewed", LOCK, fence=lease.fence, token=lease.token, until_ns=until_ns)


def work(*, url: str, folder: str, label: str, guarded: bool) -> None:
    """Run one worker: the entry point of the child process."""
    worker = DemoWorker(url, Path(folder), label, guarded=guarded)
    ready()
    worker.take_turns()


def history_file(folder: Path) -> Path:
    """Return the path of the recorded history."""
    return folder / "history.jsonl"


def counter_file(folder: Path) -> Path:
    """Return the path of the counter."""
    return folder / "counter.json"


def _must_stop(within_s: float) -> bool:
    try:
        read_line(within_s)
    except TimeoutError:
        return False
    except EOFError:
        return True  # the parent is gone
    return True


def _trusted_until_ns(lease: Lease) -> int:
    """Return the trusted deadline, on the clock of the history."""
    return time.monotonic_ns() + int(lease.remaining() * 1e9)
