"""What a worker can be told to do. Each workload takes the worker's driver and gives figures that JSON can carry."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from bench.drivers import Driver, Give, clock
from bench.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Coroutine

Figures = dict[str, Any]

_held: list[Give] = []


async def pairs(driver: Driver, seconds: float) -> Figures:
    """Acquire and release, one pair after the other, on a name of this worker's own."""
    began, cpu_began = clock(), time.process_time()
    taken = await driver.burst(f"bench-{os.getpid()}", seconds)
    return _timed(taken, clock() - began, time.process_time() - cpu_began)


async def decisions(driver: Driver, seconds: float) -> Figures:
    """May it be done? Asked over and over, for one key."""
    began, cpu_began = clock(), time.process_time()
    taken, allowed = await driver.decide(f"ann-{os.getpid()}", seconds)
    spent, cpu = clock() - began, time.process_time() - cpu_began
    return {
        "decisions": len(taken),
        "allowed_share": allowed / len(taken),
        "decisions_per_s": len(taken) / spent,
        "p50_us": percentile(taken, 0.5) * 1e6,
        "p99_us": percentile(taken, 0.99) * 1e6,
        "client_cpu_us": cpu / len(taken) * 1e6,
    }


async def publish(driver: Driver, count: int) -> Figures:
    """Send that many messages."""
    began = clock()
    await driver.take.publish(count)  # type: ignore[attr-defined, union-attr] - a queue has two words
    return {"published_per_s": count / (clock() - began)}


async def drain(driver: Driver, count: int) -> Figures:
    """Handle all of them, by a handler that does nothing."""
    cpu_began = time.process_time()
    seconds = await driver.take.drain(count)  # type: ignore[attr-defined, union-attr]
    cpu_us = (time.process_time() - cpu_began) / count * 1e6
    return {"messages": count, "messages_per_s": count / seconds, "client_cpu_us": cpu_us}


async def serve(driver: Driver, seconds: float) -> Figures:
    """Handle what comes, for so long; how old it was by then."""
    ages = await driver.take.serve(seconds)  # type: ignore[attr-defined, union-attr]
    if not ages:
        return {"messages": 0}
    return {"messages": len(ages), "p50_ms": percentile(ages, 0.5) * 1e3, "p99_ms": percentile(ages, 0.99) * 1e3}


async def keep(driver: Driver, count: int) -> Figures:
    """Take so many messages and settle none."""
    return {"messages": await driver.take.keep(count)}  # type: ignore[attr-defined, union-attr]


async def handle(driver: Driver, count: int) -> Figures:
    """Handle so many messages; when the last was done."""
    done, attempts = await driver.take.handle(count)  # type: ignore[attr-defined, union-attr]
    return {"done": done, "attempts_used": attempts}


async def fan_out(driver: Driver, callers: int, seconds: float) -> Figures:
    """Many callers at once, each on a name of its own."""
    began, cpu_began = clock(), time.process_time()
    names = (f"bench-{os.getpid()}-{number}" for number in range(callers))
    bursts = await driver.together(driver.burst(name, seconds) for name in names)
    spent, cpu = clock() - began, time.process_time() - cpu_began
    return _timed([taken for burst in bursts for taken in burst], spent, cpu)


def _timed(taken: list[float], seconds: float, cpu: float) -> Figures:
    return {
        "pairs": len(taken),
        "pairs_per_s": len(taken) / seconds,
        "p50_us": percentile(taken, 0.5) * 1e6,
        "p99_us": percentile(taken, 0.99) * 1e6,
        "client_cpu_us": cpu / len(taken) * 1e6,
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
    """Many callers, one name: ask, hold it for a while, give it back, rest, and again until the time is over."""
    ready_by = time.process_time()

    async def caller(number: int) -> list[tuple[str, float, float, float]]:
        chance, worker = random.Random(f"{seed}-{os.getpid()}-{number}"), f"{os.getpid()}-{number}"
        give = await driver.take(f"warm-{worker}")
        await give()
        await driver.sleep(start - clock())
        grants = []
        while (asked := clock()) < until:
            give = await driver.take(name)
            granted = clock()
            await driver.sleep(chance.uniform(*section))
            releasing = clock()
            await give()
            grants.append((worker, asked, granted, releasing))
            if rest[1]:
                await driver.sleep(chance.uniform(*rest))
        return grants

    told = await driver.together(caller(number) for number in range(callers))
    return {
        "workers": [f"{os.getpid()}-{number}" for number in range(callers)],
        "grants": [grant for grants in told for grant in grants],
        "cpu_s": time.process_time() - ready_by,
    }


async def hold(driver: Driver, name: str) -> Figures:
    """Take a name and keep it."""
    _held.append(await driver.take(name))
    return {"granted": clock()}


async def turn(driver: Driver, name: str) -> Figures:
    """Wait for a name, and give it back at once."""
    give = await driver.take(name)
    granted = clock()
    await give()
    return {"granted": granted}


async def gather(driver: Driver, count: int) -> Figures:
    """Take that many names and keep them all."""
    began = clock()
    _held.extend([await driver.take(f"held-{os.getpid()}-{number}") for number in range(count)])
    return {"seconds": clock() - began}


async def look(driver: Driver) -> Figures:  # noqa: ARG001 - every workload has one
    """What this process costs: its CPU time so far, and its threads besides the first."""
    return {"cpu_s": time.process_time(), "threads": threading.active_count() - 1}


async def give_all(driver: Driver) -> Figures:  # noqa: ARG001 - every workload has one
    """Give back everything that is held; count what could not be given, because it was lost."""
    lost = 0
    while _held:
        try:
            await _held.pop()()
        except Exception:
            lost += 1
    return {"lost": lost}


async def use_names(driver: Driver, count: int, callers: int) -> Figures:
    """Use that many names, each once."""
    began, names = clock(), iter(range(count))

    async def caller(left: Iterator[int]) -> None:
        for number in left:
            give = await driver.take(f"once-{os.getpid()}-{number}")
            await give()

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
        gather,
        look,
        give_all,
        use_names,
    )
}
