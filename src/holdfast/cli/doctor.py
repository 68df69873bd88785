"""`holdfast doctor`: the engine's own promise, and what can be measured from here.

The promise is printed as it is. What is measured is a whole life of a lease on a name of its own: granted, renewed,
queued for, handed over, broken; with the time it took, and each step that failed.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import holdfast
from holdfast import aio
from holdfast.cli import codes, looking, output
from holdfast.cli.plain import plain
from holdfast.config import settings
from holdfast.engines.admin import Fact, Finding
from holdfast.errors import HoldfastError, LeaseLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.blocking import Holdfast
    from holdfast.engines.admin import EngineReport

_CLOSE_S = 2.0
_LABEL = "holdfast doctor"
_PINGS = 20
_PROBE_TTL_S = 5.0
_SLOW_HANDOVER_S = 0.5
# Renewals are tried again every 100 ms; a round trip that takes longer eats into every margin.
_SLOW_TRIP_S = 0.1


class Report(NamedTuple):
    """What was found out."""

    url: str
    promise: holdfast.Promise
    facts: tuple[Fact, ...]
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]

    @property
    def code(self) -> int:
        if any(finding.serious for finding in self.findings):
            return codes.CRITICAL
        return codes.ATTENTION if self.findings else codes.OK

    def as_json(self) -> dict[str, Any]:
        """Figures as figures; those of one server among several by its address."""
        facts: dict[str, Any] = {}
        servers: dict[str, dict[str, Any]] = {}
        for fact in self.facts:
            (servers.setdefault(fact.server, {}) if fact.server else facts).update(fact.values)
        return {
            "url": self.url,
            "version": holdfast.__version__,
            "promise": self.promise.as_dict(),
            "facts": facts,
            "servers": servers,
            "findings": [finding._asdict() for finding in self.findings],
            "notes": [note._asdict() for note in self.notes],
            "code": self.code,
        }


def doctor(url: str | None, *, as_json: bool) -> int:
    """Examine, print, and say in the exit code whether somebody should look."""
    try:
        report = _examined(url)
    except Unavailable as error:
        if as_json:
            found = {"findings": [_failing("connect", error)._asdict()], "reason": error.reason}
            output.print_json({"url": settings(url).url, **found, "code": codes.CRITICAL})
        else:
            output.console().print(f"cannot be used: {error}", markup=False, soft_wrap=True)
            advice = codes.hint_for(error) or "docs/errors.md and docs/redis.md tell what this means"
            output.console().print(f"advice: {advice}", markup=False, soft_wrap=True)
        return codes.CRITICAL
    if as_json:
        output.print_json(report.as_json())
    else:
        _print(report)
    return report.code


def _examined(url: str | None) -> Report:
    looking.refuse_missing(url)
    with _connected(url) as hf:
        client = hf._client
        began = time.monotonic()
        hf.show(_probe_name())  # opens the connection
        first_s = time.monotonic() - began
        trips = sorted(_timed(lambda: hf.show(_probe_name())) for _ in range(_PINGS))
        examination: EngineReport = client.engine.examine()
        median_ms, worst_ms = statistics.median(trips) * 1000, trips[-1] * 1000
        trip = {"round_trip_ms": round(median_ms, 3), "round_trip_worst_ms": round(worst_ms, 3)}
        facts = (
            *examination.facts,
            _took("first contact", "first_contact_ms", first_s),
            Fact("round trip", f"{median_ms:.2f} ms, at worst {worst_ms:.2f} ms", trip),
        )
        findings = list(examination.findings)
        if statistics.median(trips) > _SLOW_TRIP_S:
            what = f"a round trip takes {statistics.median(trips) * 1000:.0f} ms"
            findings.append(Finding(serious=False, what=what, advice="use a longer ttl, or a server nearer by"))
        trial = Trial(url, hf)
        trial.run()
        found = (*findings, *trial.findings)
        return Report(hf.url, hf.promise(), (*facts, *trial.facts), found, examination.notes)


def _print(report: Report) -> None:
    console = output.console()
    seen = [(fact.what, fact.text) for fact in report.facts]
    console.print(output.facts([("url", report.url), ("holdfast", holdfast.__version__), *seen]))
    console.print()
    console.print(str(report.promise), markup=False, soft_wrap=True)
    console.print()
    words = [("PROBLEM" if finding.serious else "ATTENTION", finding) for finding in report.findings]
    for word, finding in (*words, *(("NOTE", note) for note in report.notes)):
        console.print(f"{word}: {plain(finding.what)}; {finding.advice}", markup=False, soft_wrap=True)
    if not report.findings:
        console.print("all is well")


class Trial:
    """One lease, from beginning to end; each step that fails is a finding, and the others are tried all the same."""

    def __init__(self, url: str | None, hf: Holdfast) -> None:
        self._url = url
        self._hf = hf
        self._name = _probe_name()
        self.facts: list[Fact] = []
        self.findings: list[Finding] = []

    def run(self) -> None:
        for what, step in (
            ("take and give back a lease", self._take),
            ("queue for a lease in a thread and be woken", self._hand_to_thread),
            ("queue for a lease in a task and be woken", self._hand_to_task),
            ("break a lease", self._break),
        ):
            try:
                step()
            except HoldfastError as error:
                self.findings.append(_failing(what, error))

    def _take(self) -> None:
        took = _timed(lambda: self._hf.lock(self._name, ttl=_PROBE_TTL_S).acquire(timeout=2).release())
        self.facts.append(_took("a lease, taken and given back", "lease_ms", took))

    def _hand_to_thread(self) -> None:
        with _connected(self._url) as other:

            def wait() -> float:
                lease = other.lock(self._name, ttl=_PROBE_TTL_S).acquire(timeout=_PROBE_TTL_S)
                got = time.monotonic()
                lease.release()
                return got

            self._hand_over("thread", wait)

    def _hand_to_task(self) -> None:
        async def wait() -> float:
            async with await aio.connect(self._url, label=_LABEL, fence_memory=1) as other:
                lease = await other.lock(self._name, ttl=_PROBE_TTL_S).acquire(timeout=_PROBE_TTL_S)
                got = time.monotonic()
                await lease.release()
                return got

        self._hand_over("task", lambda: asyncio.run(wait()))

    def _hand_over(self, whom: str, wait: Callable[[], float]) -> None:
        """A second client waits in its turn, and is woken by the release: threads and tasks are not woken alike."""
        held = self._hf.lock(self._name, ttl=_PROBE_TTL_S).acquire(timeout=2)
        with ThreadPoolExecutor(1) as thread:
            waiter = thread.submit(wait)
            until = time.monotonic() + 2
            while not waiter.done() and time.monotonic() < until and not self._hf.show(self._name).waiters:
                time.sleep(0.02)
            time.sleep(0.05)  # its ears open after it stands in the queue
            released = time.monotonic()
            held.release()
            took = waiter.result() - released
        self.facts.append(_took(f"handed to a waiting {whom}", f"handed_to_{whom}_ms", took))
        if took > _SLOW_HANDOVER_S:
            what = f"wake-ups do not arrive: a lease was handed to a waiting {whom} after {took:.1f} s"
            advice = "on Redis the user needs every right that docs/redis.md lists, the channels too"
            self.findings.append(Finding(serious=False, what=what, advice=advice))

    def _break(self) -> None:
        held = self._hf.lock(self._name, ttl=_PROBE_TTL_S).acquire(timeout=2)
        self._hf.break_lease(self._name, "holdfast doctor tries it")
        try:
            held.release()
        except LeaseLost:
            return
        what = "a lease that was broken could still be given back"
        self.findings.append(Finding(serious=True, what=what, advice="report it, with what `holdfast doctor` printed"))


@contextmanager
def _connected(url: str | None) -> Iterator[Holdfast]:
    """A client that is closed soon, whatever the engine does."""
    hf = holdfast.connect(url, label=_LABEL, fence_memory=1)
    try:
        yield hf
    finally:
        hf.close(_CLOSE_S)


def _probe_name() -> str:
    return f"holdfast-doctor/{os.uname().nodename}/{os.getpid()}"


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _took(what: str, key: str, seconds: float) -> Fact:
    return Fact(what, f"{seconds * 1000:.2f} ms", {key: round(seconds * 1000, 3)})


def _failing(what: str, error: HoldfastError) -> Finding:
    return Finding(serious=True, what=f"cannot {what}: {error}", advice=codes.hint_for(error) or "see docs/errors.md")
