"""`holdfast doctor`: print the engine's promise, and try a lease from here.

The trial takes its own lease through every step: grant, release, wait, hand-over, break. The report has the time of
each step, and a finding for each step that failed.
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
from holdfast.cli import codes, output
from holdfast.cli.connect import CLOSE_S, refuse_missing
from holdfast.cli.errors import hint_for
from holdfast.cli.options import Json, Url
from holdfast.cli.output import plain
from holdfast.cli.pool_like import KINDS
from holdfast.commands import GetPoolStats, PoolSnapshot, Show
from holdfast.commands.queue_admin import QUEUES, GetStats
from holdfast.config import settings
from holdfast.core.step import run
from holdfast.engines import Capability
from holdfast.engines.admin import Fact, Finding
from holdfast.errors import HoldfastError, LeaseLost, Unavailable, UnavailableReason, UnreadableRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.blocking import Holdfast
    from holdfast.commands import Command
    from holdfast.core.client import Client
    from holdfast.engines import Reply
    from holdfast.engines.admin import EngineReport

_LABEL = "holdfast doctor"
_PINGS = 20
_PROBE_TTL_S = 5.0
_SLOW_HANDOVER_S = 0.5
# The keeper retries a renewal every 100 ms; a slower round trip uses up every margin.
_SLOW_TRIP_S = 0.1
# How many names of each kind the doctor reads, and how many at once.
_NAMES, _ITEMS, _AT_ONCE = 10_000, 100, 500


class DoctorReport(NamedTuple):
    """The result of one examination."""

    url: str
    promise: holdfast.Promise
    facts: tuple[Fact, ...]
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]

    @property
    def code(self) -> int:
        """The exit code."""
        if any(finding.serious for finding in self.findings):
            return codes.CRITICAL
        return codes.ATTENTION if self.findings else codes.OK

    def as_json(self) -> dict[str, Any]:
        """Return the form for programs; with several servers, the facts of each are under its address."""
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


def doctor(url: Url = None, as_json: Json = False) -> int:
    """Examine the engine: what it is, what it promises, how far away it is, and what is wrong with it.

    The command tries a lease of its own from beginning to end. Exit code 0: no findings; 1: there is a finding; 2: the
    engine is not reliable.

    \b
    Example:
      holdfast doctor --url redis://localhost
    """
    try:
        report = _examine(url)
    except Unavailable as error:
        if as_json:
            found = {"findings": [_failure("connect", error)._asdict()], "reason": error.reason}
            output.print_json({"url": settings(url).url, **found, "code": codes.CRITICAL})
        else:
            output.print_line(f"cannot be used: {error}")
            output.print_line(f"advice: {hint_for(error) or 'see docs/errors.md and docs/redis.md'}")
        return codes.CRITICAL
    if as_json:
        output.print_json(report.as_json())
    else:
        _print(report)
    return report.code


def _examine(url: str | None) -> DoctorReport:
    refuse_missing(url)
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
        findings = [*examination.findings]
        try:
            findings += _unreadable(client)
        except Unavailable as error:
            if error.reason is not UnavailableReason.NO_PERMISSION:  # the examination reports a missing right
                raise
        if statistics.median(trips) > _SLOW_TRIP_S:
            what = f"a round trip takes {statistics.median(trips) * 1000:.0f} ms"
            findings.append(Finding(serious=False, what=what, advice="use a longer ttl, or a nearer server"))
        trial = Trial(url, hf)
        trial.run()
        found = (*findings, *trial.findings)
        return DoctorReport(hf.url, hf.promise(), (*facts, *trial.facts), found, examination.notes)


def _unreadable(client: Client) -> list[Finding]:
    """Ask for the state of every name, and return a finding for each that the engine cannot read."""
    commands: list[Command] = [Show(name) for name in client.engine.names("", _NAMES).names]
    if Capability.POOLS in client.engine.capabilities:
        for kind in KINDS:
            commands += [GetPoolStats(name, _ITEMS, kind) for name in client.engine.names("", _NAMES, kind).names]
    if Capability.QUEUES in client.engine.capabilities:
        commands += [GetStats(name) for name in client.engine.names("", _NAMES, QUEUES).names]
    answers: list[Reply] = []
    for first in range(0, len(commands), _AT_ONCE):
        answers += run(client.transport.apply_all(commands[first : first + _AT_ONCE]))
    findings = [
        Finding(serious=False, what=answer.detail, advice="no other name is affected; the data stays as it is")
        for answer in answers
        if isinstance(answer, UnreadableRecord)
    ]
    return findings + [
        Finding(serious=False, what=f"{command.name!r}: {answer.trouble}", advice="the other items are lent as before")
        for command, answer in zip(commands, answers, strict=True)
        if isinstance(answer, PoolSnapshot) and answer.trouble
    ]


def _print(report: DoctorReport) -> None:
    console = output.console()
    facts = [(fact.what, fact.text) for fact in report.facts]
    console.print(output.facts([("url", report.url), ("holdfast", holdfast.__version__), *facts]))
    console.print()
    console.print(str(report.promise), markup=False, soft_wrap=True)
    console.print()
    findings = [("PROBLEM" if finding.serious else "ATTENTION", finding) for finding in report.findings]
    for severity, finding in (*findings, *(("NOTE", note) for note in report.notes)):
        console.print(f"{severity}: {plain(finding.what)}; {finding.advice}", markup=False, soft_wrap=True)
    if not report.findings:
        console.print("no problems found")


class Trial:
    """Tries one lease from beginning to end; a step that fails is a finding, and the other steps still run."""

    def __init__(self, url: str | None, hf: Holdfast) -> None:
        self._url = url
        self._hf = hf
        self._name = _probe_name()
        self.facts: list[Fact] = []
        self.findings: list[Finding] = []

    def run(self) -> None:
        """Run every step."""
        for what, step in (
            ("acquire and release a lease", self._acquire),
            ("wait for a lease in a thread and be woken", self._hand_to_thread),
            ("wait for a lease in a task and be woken", self._hand_to_task),
            ("break a lease", self._break),
        ):
            try:
                step()
            except HoldfastError as error:
                self.findings.append(_failure(what, error))

    def _acquire(self) -> None:
        took = _timed(lambda: self._hf.lock(self._name, ttl=_PROBE_TTL_S).acquire(timeout=2).release())
        self.facts.append(_took("acquire and release", "lease_ms", took))

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

    def _hand_over(self, waiter_kind: str, wait: Callable[[], float]) -> None:
        """Let a second client wait, and release. Threads and tasks receive wake-ups in different ways, so test both."""
        held = self._hf.lock(self._name, ttl=_PROBE_TTL_S).acquire(timeout=2)
        with ThreadPoolExecutor(1) as thread:
            waiter = thread.submit(wait)
            until = time.monotonic() + 2
            while not waiter.done() and time.monotonic() < until and not self._hf.show(self._name).waiters:
                time.sleep(0.02)
            time.sleep(0.05)  # the waiter's listener subscribes after the waiter joined the waiting line
            released = time.monotonic()
            held.release()
            took = waiter.result() - released
        self.facts.append(_took(f"handed to a waiting {waiter_kind}", f"handed_to_{waiter_kind}_ms", took))
        if took > _SLOW_HANDOVER_S:
            what = f"wake-ups do not arrive: a waiting {waiter_kind} got the lease after {took:.1f} s"
            advice = "on Redis the user needs every right that docs/redis.md lists, also on the channels"
            self.findings.append(Finding(serious=False, what=what, advice=advice))

    def _break(self) -> None:
        held = self._hf.lock(self._name, ttl=_PROBE_TTL_S).acquire(timeout=2)
        self._hf.break_lease(self._name, "trial of holdfast doctor")
        try:
            held.release()
        except LeaseLost:
            return
        what = "a broken lease could still be released"
        self.findings.append(Finding(serious=True, what=what, advice="report it, with the output of `holdfast doctor`"))


@contextmanager
def _connected(url: str | None) -> Iterator[Holdfast]:
    """Yield a client, and close it within `CLOSE_S`, even if the engine does not answer."""
    hf = holdfast.connect(url, label=_LABEL, fence_memory=1)
    try:
        yield hf
    finally:
        hf.close(CLOSE_S)


def _probe_name() -> str:
    return f"holdfast-doctor/{os.uname().nodename}/{os.getpid()}"


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _took(what: str, key: str, seconds: float) -> Fact:
    return Fact(what, f"{seconds * 1000:.2f} ms", {key: round(seconds * 1000, 3)})


def _failure(what: str, error: HoldfastError) -> Finding:
    return Finding(serious=True, what=f"cannot {what}: {error}", advice=hint_for(error) or "see docs/errors.md")
