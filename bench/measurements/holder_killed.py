"""A holder gets SIGKILL while another process waits: how long until the waiter has the lock?

The ttl of each candidate is such that two seconds of it are left at the kill, without a renewal in between. All
candidates run at the same time, each with its own name: they mostly sleep.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from bench.testbed import Run, WorkerFailed, clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.candidates import Candidate
    from bench.scale import Scale
    from bench.testbed import Testbed

LEFT_S = 2.0
_WAITS_AFTER_S = 0.2


def holder_killed(testbed: Testbed, scale: Scale, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Return rows with the seconds from the kill to the grant."""
    testbed.pin_server(())
    runs = [Run(candidate, [], {}) for candidate in candidates]
    with ThreadPoolExecutor(len(candidates)) as pool:
        for _ in range(scale.kills):
            for run, figures in zip(runs, pool.map(lambda each: _once(testbed, scale, each), candidates), strict=True):
                run.rounds.extend(figures)
    return [run.row() for run in runs if len(run.rounds) == scale.kills]


def _once(testbed: Testbed, scale: Scale, candidate: Candidate) -> list[dict[str, Any]]:
    try:
        return [_takeover(testbed, scale, candidate)]
    except WorkerFailed as why:
        testbed.record_failure(candidate, f"{why}")
        return []


def _takeover(testbed: Testbed, scale: Scale, candidate: Candidate) -> dict[str, Any]:
    name = testbed.new_name()
    with testbed.start(candidate) as holder, testbed.start(candidate) as waiter:
        granted = holder.run("hold", name=name)["granted"]
        time.sleep(max(0.0, granted + _WAITS_AFTER_S - clock()))
        waiter.send("turn", name=name)
        time.sleep(max(0.0, granted + candidate.ttl - LEFT_S - clock()))
        at = clock()
        holder.kill()
        try:
            return {"takeover_s": waiter.receive(scale.kill_longest_s)["granted"] - at, "in_time": 1.0}
        except WorkerFailed as why:
            if not isinstance(why.__cause__, TimeoutError):
                raise
            return {"takeover_s": scale.kill_longest_s, "in_time": 0.0}
