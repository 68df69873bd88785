"""`holdfast bench`: measure how fast leases are on the user's own server.

Four measurements share the time. The numbers hold for this machine, this server and this moment, and the verdict is
about them only. The command uses its own names and releases every lease that it acquires.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import holdfast
from holdfast.cli import codes, output
from holdfast.cli.connect import refuse_process_scope
from holdfast.cli.options import Json, Url, duration
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.blocking import Holdfast

_THREADS = 8
_CLOSE_S = 5.0
_GOOD_PAIR_MS = 5.0
_BAD_PAIR_MS = 50.0


class Figures(NamedTuple):
    """One measurement: how many operations, how many per second, and how long one took."""

    what: str
    times: int
    per_second: float
    median_ms: float
    p99_ms: float
    worst_ms: float


def bench(
    url: Url = None,
    seconds: Annotated[float, duration("How long the measurements take.", least=0.5, most=600)] = 60.0,
    as_json: Json = False,
) -> int:
    """Measure how fast leases are on your own server: one minute, a plain verdict.

    The command acquires and releases leases of its own names, as fast as it can, from this one process.

    \b
    Example:
      holdfast bench --url redis://localhost --seconds 10
    """
    refuse_process_scope(url)
    hf = holdfast.connect(url, label="holdfast bench", fence_memory=1)
    try:
        base, share = f"holdfast-bench/{os.uname().nodename}/{os.getpid()}", seconds / 4
        hf.lock(base, ttl=10).acquire(timeout=5).release()  # report an engine that fails before the measurement
        measured = [
            _measure("show the holder", share, lambda: hf.show(base)),
            _measure("acquire and release", share, lambda: _pair(hf, base)),
            _measure_threads(hf, base, share),
            _measure_handover(url, base, share),
        ]
    finally:
        hf.close(_CLOSE_S)
    code, verdict = _verdict(measured)
    if as_json:
        output.print_json({
            "url": hf.url,
            "seconds": seconds,
            "figures": [each._asdict() for each in measured],
            "verdict": verdict,
            "code": code,
        })  # fmt: skip
        return code
    rows = [
        (
            each.what,
            each.times,
            f"{each.per_second:.0f}",
            f"{each.median_ms:.3f}",
            f"{each.p99_ms:.3f}",
            f"{each.worst_ms:.1f}",
        )
        for each in measured
    ]
    columns = ("what", "count", "per second", "median ms", "p99 ms", "worst ms")
    console = output.console()
    console.print(output.table(columns, rows, right=columns[1:]))
    console.print(f"\n{verdict}", soft_wrap=True)
    return code


def _pair(hf: Holdfast, name: str) -> None:
    hf.lock(name, ttl=10).acquire(timeout=10).release()


def _measure(what: str, seconds: float, call: Callable[[], object]) -> Figures:
    times: list[float] = []
    began = now = time.perf_counter()
    while now - began < seconds or not times:
        call()
        after = time.perf_counter()
        times.append(after - now)
        now = after
    return _figures(what, times, now - began)


def _measure_threads(hf: Holdfast, base: str, seconds: float) -> Figures:
    """Acquire and release in several threads: they share one client, and each has its own name."""
    collected: list[list[float]] = []
    failures: list[HoldfastError] = []

    def work(number: int) -> None:
        times: list[float] = []
        until = time.perf_counter() + seconds
        try:
            while (began := time.perf_counter()) < until or not times:
                _pair(hf, f"{base}/{number}")
                times.append(time.perf_counter() - began)
        except HoldfastError as error:
            failures.append(error)
        collected.append(times)

    began = time.perf_counter()
    _run_threads(work, _THREADS)
    if failures:
        raise failures[0]
    times = [each for part in collected for each in part]
    return _figures(f"the same in {_THREADS} threads", times, time.perf_counter() - began)


def _measure_handover(url: str | None, base: str, seconds: float) -> Figures:
    """Let two clients compete for one name, and measure from the release of one to the grant of the other."""
    moments: list[tuple[float, float]] = []
    failures: list[HoldfastError] = []
    last = [0.0]

    def work(_: int) -> None:
        hf = holdfast.connect(url, label="holdfast bench", fence_memory=1)
        until = time.perf_counter() + seconds
        try:
            while time.perf_counter() < until:
                lease = hf.lock(f"{base}/contended", ttl=10).acquire(timeout=10)
                granted = time.perf_counter()
                if last[0]:
                    moments.append((last[0], granted))
                last[0] = time.perf_counter()
                lease.release()
        except HoldfastError as error:
            failures.append(error)
        finally:
            hf.close(_CLOSE_S)

    began = time.perf_counter()
    _run_threads(work, 2)
    if failures:
        raise failures[0]
    times = [max(0.0, granted - released) for released, granted in moments]
    return _figures("hand over to a waiter", times or [0.0], time.perf_counter() - began)


def _run_threads(work: Callable[[int], None], many: int) -> None:
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _figures(what: str, times: list[float], seconds: float) -> Figures:
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    median = statistics.median(ordered)
    return Figures(
        what,
        len(ordered),
        round(len(ordered) / seconds, 1),
        round(median * 1e3, 4),
        round(p99 * 1e3, 4),
        round(ordered[-1] * 1e3, 4),
    )


def _verdict(measured: list[Figures]) -> tuple[int, str]:
    _, pair, threads, _ = measured
    cost = f"a lease costs {pair.median_ms:.2f} ms here, and one process makes {threads.per_second:.0f} per second"
    if pair.median_ms > _BAD_PAIR_MS:
        return codes.ATTENTION, f"Slow: {cost}. The server is far away: lock whole batches, not single items."
    if pair.p99_ms > _BAD_PAIR_MS:
        return codes.ATTENTION, f"Uneven: {cost}, but one in a hundred takes {pair.p99_ms:.0f} ms. Is it overloaded?"
    if pair.median_ms > _GOOD_PAIR_MS:
        return codes.OK, f"Fair: {cost}. Good for jobs and deployments; costly around every small write."
    return codes.OK, f"Good: {cost}."
