"""`holdfast bench`: how quick leases are on the user's own server, and what that means.

Four measurements share the time. Numbers are of this machine, this server and this moment; the verdict is about them
and nothing else. It works on names of its own and gives back what it took.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import holdfast
from holdfast.cli import codes, looking, output
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.blocking import Holdfast

_THREADS = 8
_CLOSE_S = 5.0
_GOOD_PAIR_MS = 5.0
_BAD_PAIR_MS = 50.0


class Figures(NamedTuple):
    """One measurement: how many times, how many per second, and how long one took."""

    what: str
    times: int
    per_second: float
    median_ms: float
    p99_ms: float
    worst_ms: float


def bench(url: str | None, seconds: float, *, as_json: bool) -> int:
    looking.refuse_lonely(url)
    hf = holdfast.connect(url, label="holdfast bench", fence_memory=1)
    try:
        base, share = f"holdfast-bench/{os.uname().nodename}/{os.getpid()}", seconds / 4
        hf.lock(base, ttl=10).acquire(timeout=5).release()  # whatever is wrong is told before anything is measured
        told = [
            _measured("ask who holds", share, lambda: hf.show(base)),
            _measured("take and give back", share, lambda: _pair(hf, base)),
            _side_by_side(hf, base, share),
            _handed_over(url, base, share),
        ]
    finally:
        hf.close(_CLOSE_S)
    code, verdict = _verdict(told)
    if as_json:
        output.print_json({
            "url": hf.url,
            "seconds": seconds,
            "figures": [each._asdict() for each in told],
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
        for each in told
    ]
    columns = ("what", "count", "per second", "median ms", "p99 ms", "worst ms")
    console = output.console()
    console.print(output.table(columns, rows, right=columns[1:]))
    console.print(f"\n{verdict}", soft_wrap=True)
    return code


def _pair(hf: Holdfast, name: str) -> None:
    hf.lock(name, ttl=10).acquire(timeout=10).release()


def _measured(what: str, seconds: float, call: Callable[[], object]) -> Figures:
    took: list[float] = []
    began = now = time.perf_counter()
    while now - began < seconds or not took:
        call()
        after = time.perf_counter()
        took.append(after - now)
        now = after
    return _figures(what, took, now - began)


def _side_by_side(hf: Holdfast, base: str, seconds: float) -> Figures:
    """Threads of one client, each with a name of its own: they do not wait for each other, but they share the wire."""
    told: list[list[float]] = []
    trouble: list[HoldfastError] = []

    def work(number: int) -> None:
        took: list[float] = []
        until = time.perf_counter() + seconds
        try:
            while (began := time.perf_counter()) < until or not took:
                _pair(hf, f"{base}/{number}")
                took.append(time.perf_counter() - began)
        except HoldfastError as error:
            trouble.append(error)
        told.append(took)

    began = time.perf_counter()
    _together(work, _THREADS)
    if trouble:
        raise trouble[0]
    return _figures(
        f"the same, {_THREADS} at a time", [each for took in told for each in took], time.perf_counter() - began
    )


def _handed_over(url: str | None, base: str, seconds: float) -> Figures:
    """Two clients want one name: how long from one's release to the other's grant."""
    moments: list[tuple[float, float]] = []
    trouble: list[HoldfastError] = []
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
            trouble.append(error)
        finally:
            hf.close(_CLOSE_S)

    began = time.perf_counter()
    _together(work, 2)
    if trouble:
        raise trouble[0]
    took = [max(0.0, granted - released) for released, granted in moments]
    return _figures("hand to whoever waits", took or [0.0], time.perf_counter() - began)


def _together(work: Callable[[int], None], many: int) -> None:
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _figures(what: str, took: list[float], seconds: float) -> Figures:
    ordered = sorted(took)
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


def _verdict(told: list[Figures]) -> tuple[int, str]:
    _, pair, many, _ = told
    cost = f"a lease costs {pair.median_ms:.2f} ms here, and one process gets through {many.per_second:.0f} in a second"
    if pair.median_ms > _BAD_PAIR_MS:
        return codes.ATTENTION, f"Slow: {cost}. The way to the server is long: lock whole batches, not single items."
    if pair.p99_ms > _BAD_PAIR_MS:
        return codes.ATTENTION, f"Uneven: {cost}, but one in a hundred takes {pair.p99_ms:.0f} ms. Is it overloaded?"
    if pair.median_ms > _GOOD_PAIR_MS:
        return codes.OK, f"Fair: {cost}. Good for jobs and deployments; costly around every small write."
    return codes.OK, f"Good: {cost}."
