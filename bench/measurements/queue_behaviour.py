"""Behaviour of a queue: two workers, latency, the cost of waiting and of holding messages, and a killed worker.

There is no peer to compare with: each figure is a bound, or is compared with itself.
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


def queue_behaviour(testbed: Testbed, scale: Scale) -> list[dict[str, Any]]:
    """Run all parts on the same server."""
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
    """Return the candidate with an unused queue."""
    return candidate._replace(options={**candidate.options, "queue": testbed.new_name(), **settings})


def _url(testbed: Testbed) -> str:
    return f"redis://127.0.0.1:{testbed.server.port}"


def _two(testbed: Testbed, count: int) -> dict[str, Any]:
    """Let two processes drain one queue."""
    one = _named(testbed, OF_TWO)
    with testbed.start(one) as first, testbed.start(one) as second:
        first.run("publish", count=count)
        before, began = testbed.counters.read(), clock()
        for worker in (first, second):
            worker.send("drain", count=count)
        for worker in (first, second):
            worker.receive()
        seconds = clock() - began
        cost = testbed.counters.per_operation(before, testbed.counters.read(), count)
    return {"messages_per_s": count / seconds, "commands": cost["commands"], "server_cpu_us": cost["server_cpu_us"]}


def _latency(testbed: Testbed, candidate: Candidate, rate: int, seconds: float) -> dict[str, Any]:
    """Measure from the publish call to the first line of the handler in another process."""
    candidate = _named(testbed, candidate)
    with testbed.start(candidate) as worker, holdfast.connect(_url(testbed)) as hf:
        queue, sent = hf.queue(candidate.options["queue"]), 0
        worker.send("serve", seconds=seconds + 1)
        time.sleep(0.5)
        began = clock()
        while (late := clock() - began) < seconds:
            if sent <= late * rate:
                queue.publish(clock())
                sent += 1
            else:
                time.sleep(max(0.0, sent / rate - late))
        figures = worker.receive()
    return {"sent_per_s": sent / seconds, "lost": sent - figures.pop("messages"), **figures}


def _waiting(testbed: Testbed, seconds: float) -> dict[str, Any]:
    """Measure a worker without messages."""
    with testbed.start(_named(testbed, WAITING_WORKER)) as worker:
        warm_up_s = min(1.0, seconds)
        worker.send("serve", seconds=seconds + 2 * warm_up_s)
        time.sleep(warm_up_s)
        cost = _over(testbed, seconds)
        worker.receive()
    return cost


def _holding(testbed: Testbed, count: int, seconds: float) -> dict[str, Any]:
    """Measure a consumer that holds so many messages and does nothing."""
    with holdfast.connect(_url(testbed)) as hf:
        queue = hf.queue(testbed.new_name(), ttl=_TTL_S)
        queue.publish_many(range(count))
        with queue.consumer(prefetch=count) as consumer:
            held = []
            while len(held) < count:
                held += consumer.receive(count, timeout=10)
            time.sleep(min(1.0, seconds))
            cost = _over(testbed, seconds)
            lost = sum(bool(message.lost) for message in held)
            for message in held:
                message.ack()
    return {**cost, "lost": lost}


def _over(testbed: Testbed, seconds: float) -> dict[str, Any]:
    """Return round trips and commands per second on the server."""
    before, began = testbed.counters.read(), clock()
    time.sleep(seconds)
    passed = clock() - began
    cost = testbed.counters.per_operation(before, testbed.counters.read(), 1)
    return {"round_trips_per_s": cost["round_trips"] / passed, "commands_per_s": cost["commands"] / passed}


def _recovery(testbed: Testbed) -> dict[str, Any]:
    """Kill one of two workers with a hundred messages in flight; measure until the other has handled the last one."""
    candidate = _named(testbed, RECOVERY, dead_after=(_TTL_S, _GRACE_S))
    with testbed.start(candidate) as doomed, testbed.start(candidate) as successor:
        doomed.run("publish", count=_IN_FLIGHT)
        doomed.run("keep", count=_IN_FLIGHT)
        successor.send("handle", count=_IN_FLIGHT)
        time.sleep(0.5)  # the other worker waits
        at = clock()
        doomed.kill()
        figures = successor.receive(60)
    recovery_s = figures["done"] - at
    return {
        "recovery_s": recovery_s,
        "beyond_s": recovery_s - _TTL_S - _GRACE_S,
        "attempts_used": figures["attempts_used"],
    }
