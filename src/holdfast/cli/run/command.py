"""`holdfast run`, from its options to its exit code."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import holdfast
from holdfast.cli import codes, failing
from holdfast.cli.run import done
from holdfast.cli.run.guard import NoWatcher
from holdfast.cli.run.program import CannotRun, Exit, Program, look_for
from holdfast.cli.run.signals import Signals
from holdfast.cli.run.supervisor import Ended, Plan, Supervisor
from holdfast.clock import NS_PER_MS, timeout_ns, ttl_ms
from holdfast.errors import InvalidConfig, LeaseLost
from holdfast.names import checked_name
from holdfast.rules.trust import margin_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.blocking import Holdfast, Lease

TTL_MIN_S = 1.0
_TOKEN = "HOLDFAST_TOKEN"  # noqa: S105 - the name of the variable
_UNTOUCHED = "the program was not started"
_CLOSE_S = 2.0
_LOOK_S = 0.02


class Request(NamedTuple):
    """What was asked for on the command line. Seconds throughout."""

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


def run(request: Request) -> int:
    """The exit code; what there is to say goes to standard error, one line."""
    plan = _plan(request)
    try:
        look_for(request.command[0])
        program = Program(request.command)  # first of all, while there is one thread and no connection
        try:
            return _held(request, plan, program)
        finally:
            program.reap()
    except (CannotRun, NoWatcher) as trouble:
        code = trouble.code if isinstance(trouble, CannotRun) else codes.INTERNAL
        return failing.tell("not started", code, str(trouble), as_json=request.json, name=request.name)


def _plan(request: Request) -> Plan:
    checked_name(request.name)
    if request.ttl < TTL_MIN_S:
        raise InvalidConfig("ttl", request.ttl, f"a program needs at least {TTL_MIN_S:.0f} s to be ended in")
    ttl = ttl_ms(request.ttl)
    if request.once is not None:
        ttl_ms(request.once, setting="once")
    timeout_ns(request.timeout)
    grace_ns = timeout_ns(request.ttl / 4 if request.grace is None else request.grace, setting="grace")
    assert grace_ns is not None
    if grace_ns > ttl * NS_PER_MS // 2:
        raise InvalidConfig("grace", request.grace, "it must be at most half of the ttl")
    # Inside of another run, it is that one's watcher that kills a parent: as its last act before its own deadline. The
    # program is in a group of its own, out of its reach, and has had its time to end before.
    orphan_ns = 0 if _TOKEN in os.environ else grace_ns
    return Plan(grace_ns, margin_ms(ttl) * NS_PER_MS, orphan_ns, timeout_ns(request.max_hold, setting="max-hold"))


class Chronicle:
    """Hears what becomes of the lease: tells people what they should know meanwhile, and whether it was given back."""

    def __init__(self, request: Request, signals: Signals) -> None:
        self._request = request
        self._signals = signals
        self._failing = False
        self.delayed = ""
        self.given_up = ""

    def __call__(self, event: holdfast.Event) -> None:
        if event.kind == "waiting" and sys.stderr.isatty():
            self._say(f"waiting for {self._request.name!r}, held by {event.detail}")
        elif event.kind == "renewal_failed" and not self._failing:
            self._failing = True
            self._say(f"the lease cannot be renewed just now, going on until it ends: {event.detail}")
        elif event.kind in ("renewed", "renewed_late"):
            self._failing = False
        elif event.kind == "release_delayed":
            self.delayed = event.detail
        elif event.kind == "delivery_abandoned":
            self.given_up = event.detail
        self._signals.stir()

    def _say(self, line: str) -> None:
        """For people; a program reads one object, at the end."""
        if not self._request.json:
            failing.remark(line)


class Result(NamedTuple):
    """A program that was seen to its end; `left` is how long the engine keeps its lease at most, if it was not told."""

    ended: Ended
    fence: int
    waited: float
    held: float
    left: float


def _held(request: Request, plan: Plan, program: Program) -> int:
    signals = Signals()
    chronicle = Chronicle(request, signals)
    hf = holdfast.connect(request.url, label=request.label, observer=chronicle)
    try:
        result = _under_lease(request, plan, program, signals, hf)
        if isinstance(result, done.Before):
            return done.tell(result, request.name, as_json=request.json)
        owed = chronicle.delayed if chronicle.delayed and _still_owes(hf) else chronicle.given_up
    finally:
        hf.close(_CLOSE_S)
    return _tell(request, result, owed)


def _still_owes(hf: Holdfast) -> bool:
    """Whether the engine has not heard of the release: its keeper goes on telling, and has a moment for that."""
    until = time.monotonic() + _CLOSE_S
    while not hf._client.keeper.idle() and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return not hf._client.keeper.idle()


def _under_lease(
    request: Request, plan: Plan, program: Program, signals: Signals, hf: Holdfast
) -> Result | done.Before:
    if hf.promise().scope == "process":
        raise InvalidConfig("url", hf.url, "its leases are of one process: no other would see this one")
    began = time.monotonic()
    lease: Lease
    if request.once is None:
        lease = hf.lock(request.name, ttl=request.ttl, timeout=request.timeout).acquire()
    else:
        lease = first = done.first(hf, request.name, request.once, request.ttl, request.timeout)
        if not first:
            return done.before(first, time.monotonic() - began)
    granted = time.monotonic()
    try:
        liveness_fd = hf._client.engine.liveness_fd()
        supervisor = Supervisor(lease, program, signals, plan, partial(done.succeeded, lease))
        ended = supervisor.run(_variables(lease), liveness_fd)
    except BaseException:
        # Nothing of the program is left: it never began, or it was seen to its end.
        with suppress(LeaseLost):
            lease.release()
        raise
    at = time.monotonic()
    return Result(ended, lease.fence, granted - began, at - granted, lease.ttl)


def _variables(lease: Lease) -> dict[str, str]:
    """What the program is told. The deadline moves on with every renewal; this is the first one."""
    return {
        "HOLDFAST_NAME": lease.name,
        "HOLDFAST_FENCE": str(lease.fence),
        _TOKEN: lease.token,
        "HOLDFAST_TTL": f"{lease.ttl:g}",
        "HOLDFAST_DEADLINE": f"{time.time() + lease.remaining():.3f}",
    }


def _tell(request: Request, result: Result, owed: str) -> int:
    ended = result.ended
    program = ended.program if ended.started else Exit(None, None)
    return failing.tell(
        ended.outcome,
        ended.code,
        "; ".join(_sentences(request, result, owed)),
        as_json=request.json,
        name=request.name,
        started=ended.started,
        program=program.code,
        signal=program.signal,
        fence=result.fence,
        waited=round(result.waited, 3),
        held=round(result.held, 3),
        given_back=not owed and ended.outcome != "lost",
    )


def _sentences(request: Request, result: Result, owed: str) -> Iterator[str]:
    ended = result.ended
    if ended.outcome == "lost":
        yield ended.detail
        yield f"the program {ended.program}: find out what it did before it runs again" if ended.started else _UNTOUCHED
    elif ended.outcome == "max-hold":
        yield f"the program held {request.name!r} for more than {request.max_hold:g} s and was ended"
        yield f"it {ended.program}"
    if owed and ended.outcome != "lost":
        yield f"the lease could not be given back and ends by itself, within {result.left:g} s: {owed}"
        if request.once is not None and ended.code == codes.OK:
            yield "its success may not be remembered, and the next one may run it again"
