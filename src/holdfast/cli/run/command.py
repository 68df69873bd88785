"""`holdfast run`, from its options to its exit code."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import holdfast
from holdfast.cli import codes, errors
from holdfast.cli.options import Name, Url, duration
from holdfast.cli.run import once as run_once
from holdfast.cli.run.program import CannotRun, Exit, Program, check_exists
from holdfast.cli.run.signals import Signals
from holdfast.cli.run.supervisor import Plan, RunResult, Supervisor
from holdfast.cli.run.watcher_process import NoWatcher
from holdfast.clock import NS_PER_MS, timeout_ns, ttl_ms
from holdfast.errors import InvalidConfig, LeaseLost
from holdfast.names import checked_name
from holdfast.rules.trust import margin_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.blocking import Holdfast, Lease

TTL_MIN_S = 1.0
_DEADLINE = "HOLDFAST_DEADLINE"  # only `run` sets it; `holdfast acquire` sets some of the others
_NOT_STARTED = "the program was not started"
_CLOSE_S = 2.0
_POLL_S = 0.02


class Request(NamedTuple):
    """The options of the command line. All times are in seconds."""

    url: str | None
    name: str
    command: list[str]
    ttl: float
    timeout: float | None
    max_hold: float | None
    grace: float | None
    once: float | None
    label: str
    json: bool


def run(
    name: Name,
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --", metavar="-- CMD")],
    url: Url = None,
    ttl: Annotated[float, duration("How long the lease lasts without renewal; at least 1s.")] = 30.0,
    timeout: Annotated[
        float | None, duration("How long to wait for the lease; 0 tries once.", show_default="for ever")
    ] = None,
    max_hold: Annotated[
        float | None,
        duration("How long until the program gets TERM, and KILL a grace later.", show_default="no bound"),
    ] = None,
    grace: Annotated[
        float | None,
        duration("How long before the deadline the program gets TERM.", show_default="a quarter of the ttl"),
    ] = None,
    once: Annotated[
        float | None,
        duration("Do not run the program if it succeeded within this time, on any host.", show_default="run it"),
    ] = None,
    label: Annotated[str, typer.Option(help="A label of this holder that others see, beside host and pid.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON on standard error at the end.")] = False,
) -> int:
    """Run a program under a lease.

    The program ends before another process can hold the lease, also if this process is frozen or killed. Its
    environment has HOLDFAST_NAME, HOLDFAST_FENCE, HOLDFAST_TOKEN, HOLDFAST_TTL and HOLDFAST_DEADLINE.

    \b
    Example:
      holdfast run nightly-report --timeout 0 -- ./report.sh --full
      holdfast run nightly-report --once 12h -- ./report.sh
    """
    request = Request(url, name, command, ttl, timeout, max_hold, grace, once, label, as_json)
    plan = _plan(request)
    try:
        check_exists(request.command[0])
        program = Program(request.command)  # fork first, while there is one thread and no connection
        try:
            return _run(request, plan, program)
        finally:
            program.collect()
    except (CannotRun, NoWatcher) as error:
        code = error.code if isinstance(error, CannotRun) else codes.UNAVAILABLE
        return errors.report("not started", code, str(error), as_json=request.json, name=request.name)


def _plan(request: Request) -> Plan:
    checked_name(request.name)
    if request.ttl < TTL_MIN_S:
        raise InvalidConfig("ttl", request.ttl, f"it must be at least {TTL_MIN_S:.0f} s, to end the program in time")
    ttl = ttl_ms(request.ttl)
    if request.once is not None:
        ttl_ms(request.once, setting="once")
    timeout_ns(request.timeout)
    grace_ns = timeout_ns(request.ttl / 4 if request.grace is None else request.grace, setting="grace")
    assert grace_ns is not None
    if grace_ns > ttl * NS_PER_MS // 2:
        raise InvalidConfig("grace", request.grace, "it must be at most half of the ttl")
    # Inside another run, the outer watcher kills this parent, as its last act before the outer deadline. This program
    # is in a group of its own, which the outer watcher does not reach, and its time to end has already passed.
    orphan_ns = 0 if _DEADLINE in os.environ else grace_ns
    return Plan(grace_ns, margin_ms(ttl) * NS_PER_MS, orphan_ns, timeout_ns(request.max_hold, setting="max-hold"))


class RunObserver:
    """Reports events of the lease to people, and records whether the release reached the engine."""

    def __init__(self, request: Request, signals: Signals) -> None:
        self._request = request
        self._signals = signals
        self._failing = False
        self.delayed = ""
        self.abandoned = ""

    def __call__(self, event: holdfast.Event) -> None:
        if event.kind == "waiting" and sys.stderr.isatty():
            self._remark(f"waiting for {self._request.name!r}, held by {event.detail}")
        elif event.kind == "renewal_failed" and not self._failing:
            self._failing = True
            self._remark(f"the lease cannot be renewed now; the program continues until it expires: {event.detail}")
        elif event.kind in ("renewed", "renewed_late"):
            self._failing = False
        elif event.kind == "release_delayed":
            self.delayed = event.detail
        elif event.kind == "delivery_abandoned":
            self.abandoned = event.detail
        self._signals.wake()

    def _remark(self, line: str) -> None:
        """Print a remark for people; a program reads one object, at the end."""
        if not self._request.json:
            errors.remark(line)


class Completed(NamedTuple):
    """A program that has ended. If the release did not arrive, the engine keeps the lease for at most `ttl`."""

    result: RunResult
    fence: int
    waited: float
    held: float
    ttl: float


def _run(request: Request, plan: Plan, program: Program) -> int:
    signals = Signals()
    observer = RunObserver(request, signals)
    hf = holdfast.connect(request.url, label=request.label, observer=observer)
    try:
        completed = _under_lease(request, plan, program, signals, hf)
        if isinstance(completed, run_once.EarlierSuccess):
            return run_once.report(completed, request.name, as_json=request.json)
        unreleased = observer.delayed if observer.delayed and not _wait_until_sent(hf) else observer.abandoned
    finally:
        hf.close(_CLOSE_S)
    return _report(request, completed, unreleased)


def _wait_until_sent(hf: Holdfast) -> bool:
    """Give the keeper a moment to deliver a delayed release; return whether it did."""
    until = time.monotonic() + _CLOSE_S
    while not hf._client.keeper.idle() and time.monotonic() < until:
        time.sleep(_POLL_S)
    return hf._client.keeper.idle()


def _under_lease(
    request: Request, plan: Plan, program: Program, signals: Signals, hf: Holdfast
) -> Completed | run_once.EarlierSuccess:
    if hf.promise().scope == "process":
        raise InvalidConfig("url", hf.url, "its leases exist in one process only: no other process would see this one")
    began = time.monotonic()
    lease: Lease
    if request.once is None:
        lease = hf.lock(request.name, ttl=request.ttl, timeout=request.timeout).acquire()
    else:
        lease = claimed = run_once.claim(hf, request.name, request.once, request.ttl, request.timeout)
        if not claimed:
            return run_once.earlier_success(claimed, time.monotonic() - began)
    granted = time.monotonic()
    try:
        liveness_fd = hf._client.engine.liveness_fd()
        supervisor = Supervisor(lease, program, signals, plan, partial(run_once.record_success, lease))
        result = supervisor.run(_variables(lease), liveness_fd)
    except BaseException:
        # No process of the program is left: it never started, or the supervisor ended it.
        with suppress(LeaseLost):
            lease.release()
        raise
    at = time.monotonic()
    return Completed(result, lease.fence, granted - began, at - granted, lease.ttl)


def _variables(lease: Lease) -> dict[str, str]:
    """Return the variables for the program. Every renewal moves the deadline; this is the first one."""
    return {
        "HOLDFAST_NAME": lease.name,
        "HOLDFAST_FENCE": str(lease.fence),
        "HOLDFAST_TOKEN": lease.token,
        "HOLDFAST_TTL": f"{lease.ttl:g}",
        _DEADLINE: f"{time.time() + lease.remaining():.3f}",
    }


def _report(request: Request, completed: Completed, unreleased: str) -> int:
    result = completed.result
    program = result.program if result.started else Exit(None, None)
    return errors.report(
        result.outcome,
        result.code,
        "; ".join(_sentences(request, completed, unreleased)),
        as_json=request.json,
        name=request.name,
        started=result.started,
        program=program.code,
        signal=program.signal,
        fence=completed.fence,
        waited=round(completed.waited, 3),
        held=round(completed.held, 3),
        released=not unreleased and result.outcome != "lost",
    )


def _sentences(request: Request, completed: Completed, unreleased: str) -> Iterator[str]:
    result = completed.result
    if result.outcome == "lost":
        yield result.detail
        ended = f"the program {result.program}: find out what it did before it runs again"
        yield ended if result.started else _NOT_STARTED
    elif result.outcome == "max-hold":
        yield f"the program held {request.name!r} for more than {request.max_hold:g} s and was ended"
        yield f"it {result.program}"
    if unreleased and result.outcome != "lost":
        yield f"the release did not reach the engine; the lease expires within {completed.ttl:g} s: {unreleased}"
        if request.once is not None and result.code == codes.OK:
            yield "the success may not be stored, and the next call may run the program again"
