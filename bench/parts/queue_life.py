"""The life of a queue: two workers on it, how soon a message is handled, what waiting and holding cost, and a death.

There is no peer to run beside: each figure is a bound, or is compared with itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import holdfast
from bench.arena import Run, clock
from bench.contenders import HOLDING, LATENCIES, OF_TWO, RECOVERY, WAITING_WORKER

if TYPE_CHECKING:
    from bench.arena import Arena
    from bench.contenders import Contender
    from bench.scale import Scale

_IN_FLIGHT = 100
_TTL_S, _GRACE_S = 3.0, 0.5


def queue_life(arena: Arena, scale: Scale) -> list[dict[str, Any]]:
    """All of it on the same server."""
    arena.pin_server(())
    rounds = range(scale.message_rounds)
    runs = [Run(OF_TWO, [_two(arena, scale.messages) for _ in rounds], {})]
    for contender, rate in LATENCIES:
        runs.append(Run(contender, [_latency(arena, contender, rate, scale.queue_s) for _ in rounds], {}))
    runs.append(Run(WAITING_WORKER, [_waiting(arena, scale.queue_s)], {}))
    runs += [Run(contender, [_holding(arena, count, scale.queue_s)], {}) for contender, count in HOLDING]
    runs.append(Run(RECOVERY, [_recovery(arena) for _ in rounds], {}))
    return [run.row() for run in runs]


def _named(arena: Arena, contender: Contender, **settings: Any) -> Contender:
    """The same, on a queue that nobody has used."""
    return contender._replace(options={**contender.options, "queue": arena.new_name(), **settings})


def _url(arena: Arena) -> str:
    return f"redis://127.0.0.1:{arena.server.port}"


def _two(arena: Arena, count: int) -> dict[str, Any]:
    """Two processes drain what a third has published."""
    one = _named(arena, OF_TWO)
    with arena.start(one) as first, arena.start(one) as second:
        first.do("publish", count=count)
        before, began = arena.meter.read(), clock()
        for worker in (first, second):
            worker.tell("drain", count=count)
        for worker in (first, second):
            worker.hear()
        seconds = clock() - began
        spent = arena.meter.spent(before, arena.meter.read(), count)
    return {"messages_per_s": count / seconds, "commands": spent["commands"], "server_cpu_us": spent["server_cpu_us"]}


def _latency(arena: Arena, contender: Contender, rate: int, seconds: float) -> dict[str, Any]:
    """From the call that sends a message to the first line of its handler in another process."""
    contender = _named(arena, contender)
    with arena.start(contender) as worker, holdfast.connect(_url(arena)) as hf:
        queue, sent = hf.queue(contender.options["queue"]), 0
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


def _waiting(arena: Arena, seconds: float) -> dict[str, Any]:
    """A worker that has nothing to do."""
    with arena.start(_named(arena, WAITING_WORKER)) as worker:
        settle_s = min(1.0, seconds)
        worker.tell("serve", seconds=seconds + 2 * settle_s)
        time.sleep(settle_s)
        spent = _over(arena, seconds)
        worker.hear()
    return spent


def _holding(arena: Arena, count: int, seconds: float) -> dict[str, Any]:
    """A consumer that has so many messages and does nothing: what keeping them costs."""
    with holdfast.connect(_url(arena)) as hf:
        queue = hf.queue(arena.new_name(), ttl=_TTL_S)
        queue.publish_many(range(count))
        with queue.consumer(prefetch=count) as consumer:
            held = []
            while len(held) < count:
                held += consumer.receive(count, timeout=10)
            time.sleep(min(1.0, seconds))
            spent = _over(arena, seconds)
            lost = sum(bool(message.lost) for message in held)
            for message in held:
                message.ack()
    return {**spent, "lost": lost}


def _over(arena: Arena, seconds: float) -> dict[str, Any]:
    """What the server does in so many seconds: round trips and commands for each of them."""
    before, began = arena.meter.read(), clock()
    time.sleep(seconds)
    passed = clock() - began
    spent = arena.meter.spent(before, arena.meter.read(), 1)
    return {"asked_per_s": spent["round_trips"] / passed, "commands_per_s": spent["commands"] / passed}


def _recovery(arena: Arena) -> dict[str, Any]:
    """One of two workers is killed with a hundred in flight: how long until the other has done the last of them."""
    contender = _named(arena, RECOVERY, dead_after=(_TTL_S, _GRACE_S))
    with arena.start(contender) as doomed, arena.start(contender) as heir:
        doomed.do("publish", count=_IN_FLIGHT)
        doomed.do("keep", count=_IN_FLIGHT)
        heir.tell("handle", count=_IN_FLIGHT)
        time.sleep(0.5)  # the other one waits
        at = clock()
        doomed.kill()
        figures = heir.hear(60)
    recovery_s = figures["done"] - at
    return {
        "recovery_s": recovery_s,
        "beyond_s": recovery_s - _TTL_S - _GRACE_S,
        "attempts_used": figures["attempts_used"],
    }
