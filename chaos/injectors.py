"""How each kind of fault strikes: generators that break something, wait, and heal it.

The rule: what a generator yields is how many seconds it wants to wait; the stage waits for all of them together.
However it ends, also when the stage closes it early, its `with` blocks heal what it broke.
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


def _kill(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    stage.faults.kill(stage.workers[label], label)
    stage.start(label)
    yield fault.lasts_s


def _freeze(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with stage.faults.frozen(stage.workers[label], ALL_WORKERS if stage.place.one_process else label):
        yield from _still(stage, label, fault.lasts_s)


def _gil_stall(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    stage.workers[label].send_line(f"gil {fault.lasts_s}")
    yield from _still(stage, label, fault.lasts_s)


def _still(stage: RoundRunner, label: str, lasts_s: float) -> Iterator[float]:
    """A worker stands still, and everybody with it if it does so inside the gate."""
    yield _MOMENT_S
    if not stage.place.is_blocked_by(stage.workers[label].pid):
        yield lasts_s
        return
    stage.played.injected[STOPPED_IN_GATE] += 1
    with stage.faults.window(STOPPED_IN_GATE):
        yield lasts_s


def _loop_stall(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    stage.workers[label].send_line(f"loop {fault.lasts_s}")
    yield fault.lasts_s


def _fork(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    stage.faults.note("fork", label)
    stage.workers[label].send_line("fork")
    yield fault.lasts_s


def _storm(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    stage.faults.note("cancellation storm", label)
    stage.workers[label].send_line("storm")
    yield fault.lasts_s


def _lost_reply(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    stage.faults.lose_reply(label)
    yield fault.lasts_s


def _cut(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    stage.faults.cut(label)
    yield fault.lasts_s


def _half_open(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with stage.faults.half_open(label):
        yield fault.lasts_s


def _slow_resend(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    """The worst moment for a client that counts its ttl wrongly.

    The answer that grants is lost, and the server cannot be reached for a part of the ttl. Then the client asks again
    and is answered. Then nothing goes through, so that no renewal can mend what it believes.
    """
    link = stage.redis.link(label)
    with stage.faults.window("slow re-send", label):
        lost = len(link.dropped)
        link.drop_answer(granted, refuse=True)
        end = time.monotonic() + fault.lasts_s
        try:
            while len(link.dropped) == lost and time.monotonic() < end:
                yield _LOOK_S
            yield stage.round.ttl * 0.45
        finally:
            link.accept()
        end = time.monotonic() + stage.round.ttl * 0.5
        while not stage.holds(label) and time.monotonic() < end:
            yield _LOOK_S
        with stage.faults.half_open(label):
            yield stage.round.ttl


def _late_answer(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    """The worst moment for a client that counts its ttl from when the answer came.

    Its answers are late for a part of the ttl. It has just heard of its grant when nothing goes through any more, so
    that no renewal can mend what it believes.
    """
    link = stage.redis.link(label)
    with stage.faults.window("late answer", label):
        link.delay_answers(stage.round.ttl * 0.5)
        try:
            end = time.monotonic() + fault.lasts_s
            while not stage.holds(label) and time.monotonic() < end:
                yield _LOOK_S
        finally:
            link.delay_answers(0)
        with stage.faults.half_open(label):
            yield stage.round.ttl * 1.7


def granted(reply: object) -> bool:
    """A script grants with the fence alone, in digits; a bell that is popped or a record are no such thing."""
    return isinstance(reply, bytes) and len(reply) >= _FENCE_DIGITS and reply.isdigit()


def _slow_server(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with stage.faults.slow_server(fault.amount):
        yield fault.lasts_s


def _frozen_server(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with stage.faults.frozen_server():
        yield fault.lasts_s


def _restart(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with stage.faults.server_down():
        yield fault.lasts_s


def _restart_without_data(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with stage.faults.server_down(keep_data=False):
        yield fault.lasts_s


def _server_clock(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with stage.faults.server_clock(fault.amount):
        yield fault.lasts_s


def _client_clock(stage: RoundRunner, label: str, fault: Fault) -> Iterator[float]:
    with stage.faults.client_clock(label, fault.amount):
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
