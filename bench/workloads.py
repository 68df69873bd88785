"""The workloads that a worker can run. Each takes the worker's driver and returns figures as JSON values."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from bench.drivers import Driver, Release, clock
from bench.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Coroutine

Figures = dict[str, Any]

_held: list[Release] = []


async def pairs(driver: Driver, seconds: float) -> Figures:
    """Acquire and release a name of this worker, one pair after the other."""
    began, cpu_began = clock(), time.process_time()
    durations = await driver.burst(f"bench-{os.getpid()}", seconds)
    return _timed(durations, clock() - began, time.process_time() - cpu_began)


async def decisions(driver: Driver, seconds: float) -> Figures:
    """Ask a rate limit for one key, one decision after the other."""
    began, cpu_began = clock(), time.process_time()
    durations, allowed = await driver.decide(f"ann-{os.getpid()}", seconds)
    spent, cpu = clock() - began, time.process_time() - cpu_began
    return {
        "decisions": len(durations),
        "allowed_share": allowed / len(durations),
        "decisions_per_s": len(durations) / spent,
        "p50_us": percentile(durations, 0.5) * 1e6,
        "p99_us": percentile(durations, 0.99) * 1e6,
        "client_cpu_us": cpu / len(durations) * 1e6,
    }


async def publish(driver: Driver, count: int) -> Figures:
    """Publish so many messages."""
    began = clock()
    await driver.acquire.publish(count)  # type: ignore[attr-defined, union-attr] - of a queue
    return {"published_per_s": count / (clock() - began)}


async def drain(driver: Driver, count: int) -> Figures:
    """Handle so many messages with a handler that does nothing."""
    cpu_began = time.process_time()
    seconds = await driver.acquire.drain(count)  # type: ignore[attr-defined, union-attr]
    cpu_us = (time.process_time() - cpu_began) / count * 1e6
    return {"messages": count, "messages_per_s": count / seconds, "client_cpu_us": cpu_us}


async def serve(driver: Driver, seconds: float) -> Figures:
    """Handle messages for so long; measure the age of each when its handler begins."""
    ages = await driver.acquire.serve(seconds)  # type: ignore[attr-defined, union-attr]
    if not ages:
        return {"messages": 0}
    return {"messages": len(ages), "p50_ms": percentile(ages, 0.5) * 1e3, "p99_ms": percentile(ages, 0.99) * 1e3}


async def keep(driver: Driver, count: int) -> Figures:
    """Receive so many messages and ack none."""
    return {"messages": await driver.acquire.keep(count)}  # type: ignore[attr-defined, union-attr]


async def handle(driver: Driver, count: int) -> Figures:
    """Handle so many messages; return when the last one was done."""
    done, attempts = await driver.acquire.handle(count)  # type: ignore[attr-defined, union-attr]
    return {"done": done, "attempts_used": attempts}


async def fan_out(driver: Driver, callers: int, seconds: float) -> Figures:
    """Acquire and release in many callers at once, each with its own name."""
    began, cpu_began = clock(), time.process_time()
    names = (f"bench-{os.getpid()}-{number}" for number in range(callers))
    bursts = await driver.together(driver.burst(name, seconds) for name in names)
    spent, cpu = clock() - began, time.process_time() - cpu_began
    return _timed([durations for burst in bursts for durations in burst], spent, cpu)


def _timed(durations: list[float], seconds: float, cpu: float) -> Figures:
    return {
        "pairs": len(durations),
        "pairs_per_s": len(durations) / seconds,
        "p50_us": percentile(durations, 0.5) * 1e6,
        "p99_us": percentile(durations, 0.99) * 1e6,
        "client_cpu_us": cpu / len(durations) * 1e6,
    }


async def turns(
    driver: Driver,
    name: str,
    callers: int,
    start: float,
    until: float,
    section: tuple[float, float],
    rest: tuple[float, float],
    seed: int,
) -> Figures:
    """Let many callers compete for one name: acquire, hold for a while, release, rest, until the time is over."""
    cpu_began = time.process_time()

    async def caller(number: int) -> list[tuple[str, float, float, float]]:
        rng, worker = random.Random(f"{seed}-{os.getpid()}-{number}"), f"{os.getpid()}-{number}"
        release = await driver.acquire(f"warm-{worker}")
        await release()
        await driver.sleep(start - clock())
        grants = []
        while (requested := clock()) < until:
            release = await driver.acquire(name)
            granted = clock()
            await driver.sleep(rng.uniform(*section))
            releasing = clock()
            await release()
            grants.append((worker, requested, granted, releasing))
            if rest[1]:
                await driver.sleep(rng.uniform(*rest))
        return grants

    collected = await driver.together(caller(number) for number in range(callers))
    return {
        "workers": [f"{os.getpid()}-{number}" for number in range(callers)],
        "grants": [grant for grants in collected for grant in grants],
        "cpu_s": time.process_time() - cpu_began,
    }


async def hold(driver: Driver, name: str) -> Figures:
    """Acquire a name and hold it."""
    _held.append(await driver.acquire(name))
    return {"granted": clock()}


async def turn(driver: Driver, name: str) -> Figures:
    """Wait for a name, and release it at once."""
    release = await driver.acquire(name)
    granted = clock()
    await release()
    return {"granted": granted}


async def hold_many(driver: Driver, count: int) -> Figures:
    """Acquire so many names and hold them all."""
    began = clock()
    _held.extend([await driver.acquire(f"held-{os.getpid()}-{number}") for number in range(count)])
    return {"seconds": clock() - began}


async def held_memory(driver: Driver, count: int) -> Figures:
    """Acquire so many names; return the bytes that this process allocated for each lease it holds."""
    release = await driver.acquire("first")
    await release()
    tracemalloc.start()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    await hold_many(driver, count)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    await release_all(driver)
    return {"bytes_each": (after - before) / count}


async def source(driver: Driver) -> Figures:  # noqa: ARG001 - every workload has one
    """Return the file from which this process loaded Holdfast."""
    return {"file": sys.modules["holdfast"].__file__}


async def process_cost(driver: Driver) -> Figures:  # noqa: ARG001 - every workload has one
    """Return the CPU time of this process, and its threads besides the first."""
    return {"cpu_s": time.process_time(), "threads": threading.active_count() - 1}


async def release_all(driver: Driver) -> Figures:  # noqa: ARG001 - every workload has one
    """Release everything; count the leases that were lost."""
    lost = 0
    while _held:
        try:
            await _held.pop()()
        except Exception:
            lost += 1
    return {"lost": lost}


async def use_names(driver: Driver, count: int, callers: int) -> Figures:
    """Acquire and release so many names, each once."""
    began, names = clock(), iter(range(count))

    async def caller(left: Iterator[int]) -> None:
        for number in left:
            release = await driver.acquire(f"once-{os.getpid()}-{number}")
            await release()

    await driver.together(caller(names) for _ in range(callers))
    return {"seconds": clock() - began, "names": count}


WORKLOADS: dict[str, Callable[..., Coroutine[Any, Any, Figures] | Awaitable[Figures]]] = {
    workload.__name__: workload
    for workload in (
        pairs,
        decisions,
        publish,
        drain,
        serve,
        keep,
        handle,
        fan_out,
        turns,
        hold,
        turn,
        hold_many,
        held_memory,
        source,
        process_cost,
        release_all,
        use_names,
    )
}
