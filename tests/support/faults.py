"""Breaks things on purpose, and writes into the history when they were broken.

The rule: a fault is a `with` block. It strikes when the block is entered, is healed when it is left, and the history
has both moments. What is over in an instant (a cut, a lost reply, a kill) is a method that just returns.

    faults = Faults(history.recorder("faults"), place)
    with faults.frozen(worker, "w0"):
        time.sleep(2)
"""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.fault_windows import EVERYBODY
from tests.support.places import SERVER, RedisPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.testing.history import Recorder
    from holdfast.testing.processes import Worker
    from tests.support.places import Place
    from tests.support.proxy import Proxy

# How long the effects of an instant may be seen: the armed reply is still to come, a connection is dialled again.
AFTERMATH_S = 2.0


class Faults:
    """The faults of one test. `place` is needed for what strikes the engine or the way to it."""

    def __init__(self, recorder: Recorder, place: Place | None = None) -> None:
        self._recorder = recorder
        self._place = place
        self._numbers = itertools.count(1)

    @contextmanager
    def window(self, kind: str, target: str = EVERYBODY) -> Iterator[None]:
        """Say in the history that this is broken now, whoever does the breaking."""
        number = next(self._numbers)
        self._recorder.record("fault", target, value=number, detail=kind)
        try:
            yield
        finally:
            self._recorder.record("healed", target, value=number, detail=kind)

    def instant(self, kind: str, target: str = EVERYBODY) -> None:
        """Say in the history that something happens now, whose effects will last for a moment."""
        now_ns = time.monotonic_ns()
        until_ns = now_ns + int(AFTERMATH_S * 1e9)
        number = next(self._numbers)
        self._recorder.record("fault", target, value=number, since_ns=now_ns, until_ns=until_ns, detail=kind)

    def noted(self, kind: str, target: str = EVERYBODY) -> None:
        """Say in the history that something happens just now, which should harm nobody."""
        now_ns = time.monotonic_ns()
        self._recorder.record("fault", target, value=next(self._numbers), since_ns=now_ns, detail=kind)

    # Processes.

    @contextmanager
    def frozen(self, worker: Worker, label: str = EVERYBODY) -> Iterator[None]:
        """SIGSTOP, then SIGCONT."""
        with self.window("freeze", label):
            worker.freeze()
            try:
                yield
            finally:
                if worker.alive:
                    worker.thaw()

    def kill(self, worker: Worker, *labels: str) -> None:
        """SIGKILL. `labels` are the workers that this process was in the history."""
        for label in labels:
            self._recorder.died(label, worker.pid, "SIGKILL")
        worker.kill()

    # Links.

    def cut(self, label: str) -> None:
        """End this worker's connections, both ways."""
        self.instant("cut", label)
        self._link(label).cut()

    def lose_reply(self, label: str, n: int = 1) -> None:
        """The n-th next command of this worker is applied; its answer never comes."""
        self.instant("lost reply", label)
        self._link(label).drop_reply(n)

    @contextmanager
    def half_open(self, label: str) -> Iterator[None]:
        """This worker's connections stand, and nothing goes through them."""
        with self.window("half-open", label):
            link = self._link(label)
            link.half_open()
            try:
                yield
            finally:
                link.accept()

    @contextmanager
    def refused(self, label: str) -> Iterator[None]:
        """This worker's connections end, and nobody answers the door."""
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
        """Every command of everybody stays on its way for that long."""
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
        """SIGSTOP for the server: connections stand, nothing is answered."""
        with self.window("frozen server"):
            self._redis().server.freeze()
            try:
                yield
            finally:
                self._redis().server.thaw()

    @contextmanager
    def server_down(self, *, keep_data: bool = True) -> Iterator[None]:
        """SIGKILL for the server; it is started again at the end, with or without its data."""
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
        """The server's calendar is ahead by that much, then right again."""
        with self.window("server clock"), self._turned(SERVER, ahead_s):
            yield

    @contextmanager
    def client_clock(self, label: str, ahead_s: float) -> Iterator[None]:
        """The calendar of one worker is ahead by that much, then right again."""
        with self.window("client clock", label), self._turned(label, ahead_s):
            yield

    @contextmanager
    def _turned(self, whose: str, ahead_s: float) -> Iterator[None]:
        assert self._place is not None
        clock = self._place.clock(whose)
        clock.set(ahead_s)
        try:
            yield
        finally:
            clock.set(0)

    def _redis(self) -> RedisPlace:
        if not isinstance(self._place, RedisPlace):
            raise TypeError("only a server can be broken this way, and this engine has none")
        return self._place

    def _link(self, label: str) -> Proxy:
        return self._redis().link(label)
