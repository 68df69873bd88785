"""The uncontended race: an acquire and a release, floor and peers in the same run, interleaved and shuffled.

Server and clients share one core, which has the least noise and shows the total work. Ratios are what counts; they are
taken round by round against the floor of the same round. Run it with `make bench`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from contenders import ASYNC, SYNC, burst, burst_async

from holdfast.testing.servers import Server, available

FLOOR = next(iter(SYNC))


def race(port: int, rounds: int, seconds: float, loops: dict[str, asyncio.AbstractEventLoop]) -> dict[str, list[float]]:
    """The median seconds of a pair, per contender and round."""
    medians: dict[str, list[float]] = {}
    clock = time.perf_counter
    with ExitStack() as stack:
        runs = {}
        for name, contender in SYNC.items():
            pair = stack.enter_context(contender(port))
            runs[name] = lambda pair=pair: burst(pair, seconds, clock)
        for kind, loop in loops.items():
            exits = AsyncExitStack()
            stack.callback(lambda loop=loop, exits=exits: loop.run_until_complete(exits.aclose()))
            for name, contender in ASYNC.items():
                pair = loop.run_until_complete(exits.enter_async_context(contender(port)))
                runs[f"{name}{kind}"] = lambda pair=pair, loop=loop: loop.run_until_complete(
                    burst_async(pair, seconds, clock)
                )
        for run in runs.values():
            run()
        for number in range(rounds):
            order = list(runs)
            random.shuffle(order)
            for name in order:
                medians.setdefault(name, []).append(statistics.median(runs[name]()))
            print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return medians


def table(medians: dict[str, list[float]]) -> list[dict[str, object]]:
    rows = []
    for name, values in medians.items():
        ratios = [value / base for value, base in zip(values, medians[FLOOR], strict=True)]
        rows.append(
            {
                "contender": name,
                "p50 us": round(statistics.median(values) * 1e6, 1),
                "x floor": round(statistics.median(ratios), 2),
                "spread": f"{min(ratios):.2f}-{max(ratios):.2f}",
            }
        )
    return rows


def markdown(rows: list[dict[str, object]]) -> str:
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(str(row[head]) for head in heads) + " |" for row in rows])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3 if os.environ.get("QUICK") else 9)
    options.add_argument("--seconds", type=float, default=0.3)
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = options.parse_args()
    kind = next(iter(available()))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    loops = {"": asyncio.new_event_loop()}
    try:
        import uvloop  # noqa: PLC0415 - a contender if it is there

        loops[" on uvloop"] = uvloop.new_event_loop()
    except ImportError:
        print("uvloop is not installed: its rows are left out", file=sys.stderr)
    with Server(kind) as server:
        rows = table(race(server.port, chosen.rounds, chosen.seconds, loops))
    for loop in loops.values():
        loop.close()
    facts = {"python": platform.python_version(), "server": kind, "cores": 1, "rounds": chosen.rounds}
    print(f"One uncontended pair; {facts}\n\n{markdown(rows)}")
    if chosen.json:
        chosen.json.write_text(json.dumps({"facts": facts, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
