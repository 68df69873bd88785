"""The injectors of all kinds of faults: generators that break something, wait, and heal it.

A generator yields how many seconds it wants to wait; the runner waits for all generators together. If the runner closes
a generator early, its `with` blocks heal the fault.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chaos import failovers
from tests.support.fault_windows import ALL_WORKERS, STOPPED_IN_GATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chaos.runner import RoundRunner
    from chaos.schedule import Fault

    Injector = Callable[[RoundRunner, str, Fault], Iterator[float]]

_LOOK_S = 0.01
_MOMENT_S = 0.05

_FENCE_DIGITS = 16  # microseconds since 1970


def _kill(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    runner.faults.kill(runner.workers[label], label)
    runner.start(label)
    yield fault.lasts_s


def _freeze(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with runner.faults.frozen(runner.workers[label], ALL_WORKERS if runner.place.one_process else label):
        yield from _still(runner, label, fault.lasts_s)


def _gil_stall(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    runner.workers[label].send_line(f"gil {fault.lasts_s}")
    yield from _still(runner, label, fault.lasts_s)


def _still(runner: RoundRunner, label: str, lasts_s: float) -> Iterator[float]:
    """Wait while a worker is stopped; if it stopped inside the gate, record a fault of all workers."""
    yield _MOMENT_S
    if not runner.place.is_blocked_by(runner.workers[label].pid):
        yield lasts_s
        return
    runner.result.injected[STOPPED_IN_GATE] += 1
    with runner.faults.window(STOPPED_IN_GATE):
        yield lasts_s


def _loop_stall(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    runner.workers[label].send_line(f"loop {fault.lasts_s}")
    yield fault.lasts_s


def _fork(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    runner.faults.note("fork", label)
    runner.workers[label].send_line("fork")
    yield fault.lasts_s


def _storm(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    runner.faults.note("cancellation storm", label)
    runner.workers[label].send_line("storm")
    yield fault.lasts_s


def _lost_reply(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    runner.faults.lose_reply(label)
    yield fault.lasts_s


def _cut(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    runner.faults.cut(label)
    yield fault.lasts_s


def _half_open(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with runner.faults.half_open(label):
        yield fault.lasts_s


def _slow_resend(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    """Inject the worst case for a client that does not restart its ttl with a resend.

    The reply that grants is lost, and the server is unreachable for a part of the ttl. Then the client resends and gets
    an answer. Then its connections deliver nothing, so that no renewal can correct its deadline.
    """
    link = runner.redis.link(label)
    with runner.faults.window("slow re-send", label):
        lost = len(link.dropped)
        link.drop_answer(granted, refuse=True)
        end = time.monotonic() + fault.lasts_s
        try:
            while len(link.dropped) == lost and time.monotonic() < end:
                yield _LOOK_S
            yield runner.round.ttl * 0.45
        finally:
            link.accept()
        end = time.monotonic() + runner.round.ttl * 0.5
        while not runner.holds(label) and time.monotonic() < end:
            yield _LOOK_S
        with runner.faults.half_open(label):
            yield runner.round.ttl


def _late_answer(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    """Inject the worst case for a client that counts its ttl from the arrival of the answer.

    Its replies are late for a part of the ttl. As soon as it has its grant, its connections deliver nothing, so that no
    renewal can correct its deadline.
    """
    link = runner.redis.link(label)
    with runner.faults.window("late answer", label):
        link.delay_answers(runner.round.ttl * 0.5)
        try:
            end = time.monotonic() + fault.lasts_s
            while not runner.holds(label) and time.monotonic() < end:
                yield _LOOK_S
        finally:
            link.delay_answers(0)
        with runner.faults.half_open(label):
            yield runner.round.ttl * 1.7


def granted(reply: object) -> bool:
    """Return whether a reply is a grant: the fence alone, in digits; a wake-up or a record is none."""
    return isinstance(reply, bytes) and len(reply) >= _FENCE_DIGITS and reply.isdigit()


def _slow_server(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with runner.faults.slow_server(fault.amount):
        yield fault.lasts_s


def _frozen_server(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with runner.faults.frozen_server():
        yield fault.lasts_s


def _restart(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with runner.faults.server_down():
        yield fault.lasts_s


def _restart_without_data(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with runner.faults.server_down(keep_data=False):
        yield fault.lasts_s


def _server_clock(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with runner.faults.server_clock(fault.amount):
        yield fault.lasts_s


def _client_clock(runner: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with runner.faults.client_clock(label, fault.amount):
        yield fault.lasts_s


INJECTORS: dict[str, Injector] = {
    "kill": _kill,
    "freeze": _freeze,
    "long freeze": _freeze,
    "gil stall": _gil_stall,
    "loop stall": _loop_stall,
    "fork": _fork,
    "cancellation storm": _storm,
    "lost reply": _lost_reply,
    "cut": _cut,
    "half-open": _half_open,
    "slow re-send": _slow_resend,
    "late answer": _late_answer,
    "slow server": _slow_server,
    "frozen server": _frozen_server,
    "restart": _restart,
    "restart without data": _restart_without_data,
    "server clock": _server_clock,
    "client clock": _client_clock,
    **failovers.INJECTORS,
}
