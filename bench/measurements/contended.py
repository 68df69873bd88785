"""Many callers compete for one name. The kernel schedules the processes on all cores.

Every run is checked for two holders at once, by the times that the workers recorded on their shared clock. A run with
an overlap does not measure a lock: it keeps the number of overlaps and loses all other figures.

The number of commands sent is counted afterwards, in a short run through a proxy: the server's own counters do not
separate a client's commands from those that scripts call.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.candidates import TCP, Candidate
from bench.stats import Grant, contention, lags, overlaps, percentile
from bench.testbed import clock
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.testbed import Testbed, Worker

_LEAD_S = 0.25


class Setting(NamedTuple):
    """Processes, callers, the length of a critical section and of the rest after it, and the length of a run."""

    processes: int
    callers: int
    seconds: float
    rounds: int
    section: tuple[float, float]
    rest: tuple[float, float] = (0.0, 0.0)
    count_s: float = 0.0


def contended(testbed: Testbed, setting: Setting, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Measure grants, gaps, shares and waits."""
    return _measure(testbed, setting, candidates, contention)


def single_waiter(testbed: Testbed, setting: Setting, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Measure how late a single waiter learns of a release."""
    return _measure(testbed, setting, candidates, _lag)


def _lag(grants: list[Grant], _workers: list[str], start: float, until: float) -> dict[str, float]:
    found = lags([grant for grant in grants if start <= grant.requested < until])
    if not found:
        return {"samples": 0}
    return {
        "samples": len(found),
        "lag_p50_ms": percentile(found, 0.5) * 1e3,
        "lag_p99_ms": percentile(found, 0.99) * 1e3,
    }


def _measure(
    testbed: Testbed, setting: Setting, candidates: Sequence[Candidate], figures_of: Any
) -> list[dict[str, Any]]:
    testbed.pin_server(())

    def one_round(_contender: Candidate, processes: list[Worker]) -> dict[str, Any]:
        before = testbed.counters.read()
        answers, start, until = _turns(testbed, setting, processes)
        after = testbed.counters.read()
        grants = [Grant(*grant) for each in answers for grant in each["grants"]]
        found: dict[str, Any] = {"overlaps": overlaps(grants)}
        if found["overlaps"]:
            return found
        workers = [worker for each in answers for worker in each["workers"]]
        found |= figures_of(grants, workers, start, until)
        found |= testbed.counters.per_operation(before, after, len(grants))
        found["client_cpu_us"] = sum(each["cpu_s"] for each in answers) / len(grants) * 1e6
        return found

    def counted(candidate: Candidate, processes: list[Worker]) -> dict[str, Any]:
        return _sent(testbed, setting._replace(seconds=setting.count_s), processes) if candidate.wire == TCP else {}

    afterwards = counted if setting.count_s else None
    runs = testbed.interleaved(candidates, setting.rounds, one_round, size=setting.processes, afterwards=afterwards)
    return [run.row() for run in runs]


def _sent(testbed: Testbed, setting: Setting, processes: list[Worker]) -> dict[str, Any]:
    """Return the commands per grant, from the start of the run until the last release."""
    with Proxy("127.0.0.1", testbed.server.port) as proxy:
        for worker in processes:
            worker.run("open", url=proxy.url)
        answers, _, _ = _turns(testbed, setting, processes, proxy.reset)
        return {"sent": proxy.requests / sum(len(each["grants"]) for each in answers)}


def _turns(
    testbed: Testbed, setting: Setting, processes: list[Worker], at_start: Callable[[], None] | None = None
) -> tuple[list[dict[str, Any]], float, float]:
    start = clock() + _LEAD_S
    until = start + setting.seconds
    order = {
        "name": testbed.new_name(),
        "callers": setting.callers,
        "start": start,
        "until": until,
        "section": setting.section,
        "rest": setting.rest,
        "seed": random.randrange(2**32),
    }
    for worker in processes:
        worker.send("turns", **order)
    if at_start is not None:
        time.sleep(max(0.0, start - clock()))
        at_start()
    answers = [worker.receive() for worker in processes]
    return answers, max([start, *_first_requests(answers)]), until


def _first_requests(answers: list[dict[str, Any]]) -> list[float]:
    """Return the first request of each caller. A run counts from the last of them: on a busy machine some are late."""
    first: dict[str, float] = {}
    for each in answers:
        for worker, requested, _, _ in each["grants"]:
            first.setdefault(worker, requested)
    return list(first.values())
