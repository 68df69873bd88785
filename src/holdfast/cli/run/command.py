"""`holdfast run`, from its options to its exit code."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import holdfast
from holdfast.cli import codes
from holdfast.cli.run.guard import NoWatcher
from holdfast.cli.run.program import CannotRun, Program, look_for
from holdfast.cli.run.signals import Signals
from holdfast.cli.run.supervisor import Ended, Plan, Supervisor
from holdfast.clock import NS_PER_MS, timeout_ns, ttl_ms
from holdfast.errors import InvalidConfig, LeaseLost
from holdfast.names import checked_name
from holdfast.rules.trust import margin_ms

if TYPE_CHECKING:
    from holdfast.blocking import Holdfast, Lease

TTL_MIN_S = 1.0
_CLOSE_S = 2.0


class Request(NamedTuple):
    """What was asked for on the command line. Seconds throughout."""

    url: str | None
    name: str
    command: list[str]
    ttl: float
    timeout: float | None
    max_hold: float | None
    grace: float | None
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
        _tell(request, {"outcome": "not started", "code": code}, str(trouble))
        return code


def _plan(request: Request) -> Plan:
    checked_name(request.name)
    ttl = ttl_ms(request.ttl)
    if request.ttl < TTL_MIN_S:
        raise InvalidConfig("ttl", request.ttl, f"a program needs at least {TTL_MIN_S:.0f} s to be ended in")
    timeout_ns(request.timeout)
    grace_ns = timeout_ns(request.ttl / 4 if request.grace is None else request.grace, setting="grace")
    assert grace_ns is not None
    if grace_ns > ttl * NS_PER_MS // 2:
        raise InvalidConfig("grace", request.grace, "it must be at most half of the ttl")
    return Plan(grace_ns, margin_ms(ttl) * NS_PER_MS, timeout_ns(request.max_hold, setting="max-hold"))


def _held(request: Request, plan: Plan, program: Program) -> int:
    signals = Signals()
    said: list[str] = []

    def observe(event: holdfast.Event) -> None:
        if event.kind == "waited" and sys.stderr.isatty() and not request.json:
            sys.stderr.write(f"holdfast: waiting for {request.name!r}, held by {event.detail}\n")
        elif event.kind == "renewal failed" and not said:
            said.append(event.kind)
            sys.stderr.write(
                f"holdfast: the lease cannot be renewed just now, going on until it ends: {event.detail}\n"
            )
        elif event.kind in ("renewed", "renewed late"):
            said.clear()
        signals.stir()

    hf = holdfast.connect(request.url, label=request.label, observer=observe)
    try:
        return _under_lease(request, plan, program, signals, hf)
    finally:
        hf.close(_CLOSE_S)


def _under_lease(request: Request, plan: Plan, program: Program, signals: Signals, hf: Holdfast) -> int:
    if hf.promise().scope == "process":
        raise InvalidConfig("url", hf.url, "its leases are of one process: no other would see this one")
    began = time.monotonic()
    lease = hf.lock(request.name, ttl=request.ttl, timeout=request.timeout).acquire()
    granted = time.monotonic()
    try:
        lifeline = hf._client.engine.lifeline()
        ended = Supervisor(lease, program, signals, plan).run(_variables(lease), lifeline)
    except BaseException:
        # Nothing of the program is left: it never began, or it was seen to its end.
        with suppress(LeaseLost):
            lease.release()
        raise
    facts = {
        "outcome": ended.outcome,
        "code": ended.code,
        "program": ended.program,
        "fence": lease.fence,
        "waited": round(granted - began, 3),
        "held": round(time.monotonic() - granted, 3),
    }
    _tell(request, facts, _sentence(request, ended))
    return ended.code


def _variables(lease: Lease) -> dict[str, str]:
    """What the program is told. The deadline moves on with every renewal; this is the first one."""
    return {
        "HOLDFAST_NAME": lease.name,
        "HOLDFAST_FENCE": str(lease.fence),
        "HOLDFAST_TOKEN": lease.token,
        "HOLDFAST_TTL": f"{lease.ttl:g}",
        "HOLDFAST_DEADLINE": f"{time.time() + lease.remaining():.3f}",
    }


def _sentence(request: Request, ended: Ended) -> str:
    how = _how(ended.program)
    if ended.outcome == "lost":
        return f"{ended.detail}; the program {how}: find out what it did before it runs again"
    if ended.outcome == "max-hold":
        return f"the program held {request.name!r} for more than {request.max_hold:g} s and was ended; it {how}"
    return ""


def _how(code: int) -> str:
    return f"ended by signal {code - codes.SIGNAL}" if code > codes.SIGNAL else f"ended with code {code}"


def _tell(request: Request, facts: dict[str, Any], sentence: str) -> None:
    with suppress(OSError):  # whoever does not want to hear it must not change the exit code
        if request.json:
            said = {"error": sentence} if sentence else {}
            sys.stderr.write(json.dumps({"name": request.name, **facts, **said}) + "\n")
        elif sentence:
            sys.stderr.write(f"holdfast: {sentence}\n")
