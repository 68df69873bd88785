"""Injects faults, and records their times in the history.

A fault is a `with` block: it begins when the block is entered and is healed when the block is left, and the history has
both moments. A fault without a length (a cut, a lost reply, a kill) is a plain method.

    faults = Faults(history.recorder("faults"), place)
    with faults.frozen(worker, "w0"):
        time.sleep(2)
"""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.fault_windows import ALL_WORKERS
from tests.support.places import SERVER, RedisPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.testing.history import Recorder
    from holdfast.testing.processes import WorkerProcess
    from tests.support.places import Place
    from tests.support.proxy import Proxy

# How long a fault without a length may have effects: the armed reply is still to come, a connection is opened again.
EFFECTS_S = 2.0


class Faults:
    """The faults of one test. Faults of the engine, its links and clocks need the `place`."""

    def __init__(self, recorder: Recorder, place: Place | None = None) -> None:
        self._recorder = recorder
        self._place = place
        self._numbers = itertools.count(1)

    @contextmanager
    def window(self, kind: str, target: str = ALL_WORKERS) -> Iterator[None]:
        """Record a fault for the length of the block; the caller injects it."""
        number = next(self._numbers)
        self._recorder.record("fault", target, value=number, detail=kind)
        try:
            yield
        finally:
            self._recorder.record("healed", target, value=number, detail=kind)

    def instant(self, kind: str, target: str = ALL_WORKERS) -> None:
        """Record a fault without a length, with effects for `EFFECTS_S`."""
        now_ns = time.monotonic_ns()
        until_ns = now_ns + int(EFFECTS_S * 1e9)
        number = next(self._numbers)
        self._recorder.record("fault", target, value=number, since_ns=now_ns, until_ns=until_ns, detail=kind)

    def note(self, kind: str, target: str = ALL_WORKERS) -> None:
        """Record an event now that a correct client does not notice."""
        now_ns = time.monotonic_ns()
        self._recorder.record("fault", target, value=next(self._numbers), since_ns=now_ns, detail=kind)

    # Processes.

    @contextmanager
    def frozen(self, worker: WorkerProcess, label: str = ALL_WORKERS) -> Iterator[None]:
        """Freeze a worker's process for the length of the block."""
        with self.window("freeze", label):
            worker.freeze()
            try:
                yield
            finally:
                if worker.alive:
                    worker.thaw()

    def kill(self, worker: WorkerProcess, *labels: str) -> None:
        """Send SIGKILL to a worker's process; `labels` are its workers in the history."""
        for label in labels:
            self._recorder.died(label, worker.pid, "SIGKILL")
        worker.kill()

    # Links.

    def cut(self, label: str) -> None:
        """Close this worker's connections, in both directions."""
        self.instant("cut", label)
        self._link(label).cut()

    def lose_reply(self, label: str, n: int = 1) -> None:
        """Apply the n-th next command of this worker and drop its reply."""
        self.instant("lost reply", label)
        self._link(label).drop_reply(n)

    @contextmanager
    def half_open(self, label: str) -> Iterator[None]:
        """Keep this worker's connections open and deliver nothing on them."""
        with self.window("half-open", label):
            link = self._link(label)
            link.half_open()
            try:
                yield
            finally:
                link.accept()

    @contextmanager
    def refused(self, label: str) -> Iterator[None]:
        """Close this worker's connections and refuse new ones."""
        with self.window("refused", label):
            link = self._link(label)
            link.refuse()
            link.cut()
            try:
                yield
            finally:
                link.accept()

    # The server.

    @contextmanager
    def slow_server(self, seconds: float) -> Iterator[None]:
        """Delay every command of every worker by that long."""
        with self.window("slow server"):
            for link in self._redis().links:
                link.delay(seconds)
            try:
                yield
            finally:
                for link in self._redis().links:
                    link.delay(0)

    @contextmanager
    def frozen_server(self) -> Iterator[None]:
        """Freeze the server: connections stay open without answers."""
        with self.window("frozen server"):
            self._redis().server.freeze()
            try:
                yield
            finally:
                self._redis().server.thaw()

    @contextmanager
    def server_down(self, *, keep_data: bool = True) -> Iterator[None]:
        """Kill the server; restart it at the end of the block, with or without its data."""
        with self.window("restart" if keep_data else "restart without data"):
            server = self._redis().server
            server.kill()
            try:
                yield
            finally:
                server.restart(keep_data=keep_data)

    # Clocks.

    @contextmanager
    def server_clock(self, ahead_s: float) -> Iterator[None]:
        """Set the server's wall clock forward for the length of the block."""
        with self.window("server clock"), self._turned(SERVER, ahead_s):
            yield

    @contextmanager
    def client_clock(self, label: str, ahead_s: float) -> Iterator[None]:
        """Set the wall clock of one worker forward for the length of the block."""
        with self.window("client clock", label), self._turned(label, ahead_s):
            yield

    @contextmanager
    def _turned(self, worker: str, ahead_s: float) -> Iterator[None]:
        assert self._place is not None
        clock = self._place.clock(worker)
        clock.set(ahead_s)
        try:
            yield
        finally:
            clock.set(0)

    def _redis(self) -> RedisPlace:
        if not isinstance(self._place, RedisPlace):
            raise TypeError("this fault needs a server, and this engine has none")
        return self._place

    def _link(self, label: str) -> Proxy:
        return self._redis().link(label)
