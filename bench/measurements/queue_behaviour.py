"""The life of a queue: two workers on it, how soon a message is handled, what waiting and holding cost, and a death.

There is no peer to run beside: each figure is a bound, or is compared with itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import holdfast
from bench.candidates import HOLDING, LATENCIES, OF_TWO, RECOVERY, WAITING_WORKER
from bench.testbed import Run, clock

if TYPE_CHECKING:
    from bench.candidates import Candidate
    from bench.scale import Scale
    from bench.testbed import Testbed

_IN_FLIGHT = 100
_TTL_S, _GRACE_S = 3.0, 0.5


def queue_life(testbed: Testbed, scale: Scale) -> list[dict[str, Any]]:
    """All of it on the same server."""
    testbed.pin_server(())
    rounds = range(scale.message_rounds)
    runs = [Run(OF_TWO, [_two(testbed, scale.messages) for _ in rounds], {})]
    for candidate, rate in LATENCIES:
        runs.append(Run(candidate, [_latency(testbed, candidate, rate, scale.queue_s) for _ in rounds], {}))
    runs.append(Run(WAITING_WORKER, [_waiting(testbed, scale.queue_s)], {}))
    runs += [Run(candidate, [_holding(testbed, count, scale.queue_s)], {}) for candidate, count in HOLDING]
    runs.append(Run(RECOVERY, [_recovery(testbed) for _ in rounds], {}))
    return [run.row() for run in runs]


def _named(testbed: Testbed, candidate: Candidate, **settings: Any) -> Candidate:
    """The same, on a queue that nobody has used."""
    return candidate._replace(options={**candidate.options, "queue": testbed.new_name(), **settings})


def _url(testbed: Testbed) -> str:
    return f"redis://127.0.0.1:{testbed.server.port}"


def _two(testbed: Testbed, count: int) -> dict[str, Any]:
    """Two processes drain what a third has published."""
    one = _named(testbed, OF_TWO)
    with testbed.start(one) as first, testbed.start(one) as second:
        first.do("publish", count=count)
        before, began = testbed.counters.read(), clock()
        for worker in (first, second):
            worker.tell("drain", count=count)
        for worker in (first, second):
            worker.hear()
        seconds = clock() - began
        spent = testbed.counters.spent(before, testbed.counters.read(), count)
    return {"messages_per_s": count / seconds, "commands": spent["commands"], "server_cpu_us": spent["server_cpu_us"]}


def _latency(testbed: Testbed, candidate: Candidate, rate: int, seconds: float) -> dict[str, Any]:
    """From the call that sends a message to the first line of its handler in another process."""
    candidate = _named(testbed, candidate)
    with testbed.start(candidate) as worker, holdfast.connect(_url(testbed)) as hf:
        queue, sent = hf.queue(candidate.options["queue"]), 0
        worker.tell("serve", seconds=seconds + 1)
        time.sleep(0.5)
        began = clock()
        while (late := clock() - began) < seconds:
            if sent <= late * rate:
                queue.publish(clock())
                sent += 1
            else:
                time.sleep(max(0.0, sent / rate - late))
        figures = worker.hear()
    return {"sent_per_s": sent / seconds, "lost": sent - figures.pop("messages"), **figures}


def _waiting(testbed: Testbed, seconds: float) -> dict[str, Any]:
    """A worker that has nothing to do."""
    with testbed.start(_named(testbed, WAITING_WORKER)) as worker:
        settle_s = min(1.0, seconds)
        worker.tell("serve", seconds=seconds + 2 * settle_s)
        time.sleep(settle_s)
        spent = _over(testbed, seconds)
        worker.hear()
    return spent


def _holding(testbed: Testbed, count: int, seconds: float) -> dict[str, Any]:
    """A consumer that has so many messages and does nothing: what keeping them costs."""
    with holdfast.connect(_url(testbed)) as hf:
        queue = hf.queue(testbed.new_name(), ttl=_TTL_S)
        queue.publish_many(range(count))
        with queue.consumer(prefetch=count) as consumer:
            held = []
            while len(held) < count:
                held += consumer.receive(count, timeout=10)
            time.sleep(min(1.0, seconds))
            spent = _over(testbed, seconds)
            lost = sum(bool(message.lost) for message in held)
            for message in held:
                message.ack()
    return {**spent, "lost": lost}


def _over(testbed: Testbed, seconds: float) -> dict[str, Any]:
    """What the server does in so many seconds: round trips and commands for each of them."""
    before, began = testbed.counters.read(), clock()
    time.sleep(seconds)
    passed = clock() - began
    spent = testbed.counters.spent(before, testbed.counters.read(), 1)
    return {"round_trips_per_s": spent["round_trips"] / passed, "commands_per_s": spent["commands"] / passed}


def _recovery(testbed: Testbed) -> dict[str, Any]:
    """One of two workers is killed with a hundred in flight: how long until the other has done the last of them."""
    candidate = _named(testbed, RECOVERY, dead_after=(_TTL_S, _GRACE_S))
    with testbed.start(candidate) as doomed, testbed.start(candidate) as successor:
        doomed.do("publish", count=_IN_FLIGHT)
        doomed.do("keep", count=_IN_FLIGHT)
        successor.tell("handle", count=_IN_FLIGHT)
        time.sleep(0.5)  # the other one waits
        at = clock()
        doomed.kill()
        figures = successor.hear(60)
    recovery_s = figures["done"] - at
    return {
        "recovery_s": recovery_s,
        "beyond_s": recovery_s - _TTL_S - _GRACE_S,
        "attempts_used": figures["attempts_used"],
    }
