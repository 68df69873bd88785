"""`holdfast acquire`, `check` and `release`, for shell scripts."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import codes, errors, output
from holdfast.cli.options import Json, Name, Url, duration
from holdfast.cli.shell.script import CallingScript, calling_script
from holdfast.cli.shell.watcher import PRINTED, ShellRequest, call_watcher, watch
from holdfast.clock import SYSTEM, timeout_ns, ttl_ms
from holdfast.errors import InvalidConfig
from holdfast.names import checked_name

if TYPE_CHECKING:
    from collections.abc import Mapping

ON_LOSS = ("term", "report")
_GRANT_MAX = 1 << 16
_CHECK_S = 2.0
_RELEASE_S = 10.0

Token = Annotated[str, typer.Argument(help='The token of the lease: "$HOLDFAST_TOKEN".', metavar="TOKEN")]


def acquire(
    name: Name,
    url: Url = None,
    timeout: Annotated[
        float | None, duration("How long to wait for the lease; 0 tries once.", show_default="for ever")
    ] = None,
    ttl: Annotated[float, duration("How long the lease lasts without renewal.")] = 30.0,
    on_loss: Annotated[
        str,
        typer.Option(metavar="term|report", help="When the lease is lost: send TERM to the script, or only report it."),
    ] = "term",
    pid: Annotated[
        int | None,
        typer.Option(help="The process whose end releases the lease.", show_default="the script that evaluates this"),
    ] = None,
    label: Annotated[str, typer.Option(help="A label of this holder that others see, beside host and pid.")] = "",
    as_json: Json = False,
) -> int:
    """Acquire a lease for a shell script, and hold it until the script ends.

    Evaluate the output: it sets HOLDFAST_NAME, HOLDFAST_TOKEN and HOLDFAST_FENCE. If the lease is not acquired, it sets
    nothing, and the status of `eval` is the exit code, 75 for a busy name.

    \b
    Example:
      eval "$(holdfast acquire deploy --timeout 10s)" || exit
      holdfast check "$HOLDFAST_TOKEN" && ./deploy.sh
      holdfast release "$HOLDFAST_TOKEN"
    """
    checked_name(name)
    ttl_ms(ttl)
    timeout_ns(timeout)
    if on_loss not in ON_LOSS:
        raise InvalidConfig("on-loss", on_loss, f"it must be {' or '.join(ON_LOSS)}, as in --on-loss report")
    script = CallingScript(calling_script() if pid is None else pid)
    ours, theirs = socket.socketpair()
    # Fork now, while there is one thread and no connection. The child is the holder, so it acquires the lease.
    watcher = os.fork()
    if watcher == 0:
        ours.close()
        return watch(ShellRequest(url, name, ttl, timeout, label, on_loss == "term"), script, theirs)
    theirs.close()
    data = b"".join(iter(lambda: ours.recv(_GRANT_MAX), b""))
    if not data:  # the watcher has reported why
        code = os.waitstatus_to_exitcode(os.waitpid(watcher, 0)[1])
        return code if code >= 0 else codes.SIGNAL - code
    _print_grant(json.loads(data), as_json=as_json)
    ours.sendall(PRINTED)
    return codes.OK


def _print_grant(grant: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the variables, quoted for a shell, in the bytes in which the name came."""
    variables = {f"HOLDFAST_{key.upper()}": str(grant[key]) for key in ("name", "token", "fence")}
    text = json.dumps(grant) if as_json else "export " + " ".join(f"{k}={shlex.quote(v)}" for k, v in variables.items())
    sys.stdout.buffer.write(os.fsencode(f"{text}\n"))
    sys.stdout.flush()
    if sys.stdout.isatty() and not as_json:
        errors.remark(f'to set these variables, call it as: eval "$(holdfast acquire {shlex.quote(grant["name"])})"')


def check(token: Token, as_json: Json = False) -> int:
    """Exit with 0 only while the lease of a token is trusted: held, renewed in time, and watched.

    \b
    Example:
      holdfast check "$HOLDFAST_TOKEN" || exit
    """
    answer = call_watcher("check", token, _CHECK_S)
    if answer and answer["state"] == "held":
        remaining = (answer.pop("deadline_ns") - SYSTEM.now_ns()) / 1e9
        if remaining > 0:
            if as_json:
                output.print_json({**answer, "remaining": round(remaining, 3)})
            return codes.OK
        answer = {}
    return _report_lost(answer, as_json=as_json)


def release(token: Token, as_json: Json = False) -> int:
    """Release the lease of a token, and end its watcher.

    \b
    Example:
      holdfast release "$HOLDFAST_TOKEN"
    """
    answer = call_watcher("release", token, _RELEASE_S)
    if answer is None:
        line = (
            "no watcher has this token: the lease was released before, or it ends by its ttl if its watcher was killed"
        )
        return errors.report("not found", codes.NOT_FOUND, line, as_json=as_json)
    state = answer.get("state")
    if state == "released":
        if as_json:
            output.print_json(answer)
        return codes.OK
    if state == "delayed":
        line = f"the release did not reach the engine; lease {answer['name']!r} expires within {answer['ttl']:g} s"
        return errors.report("delayed", codes.UNAVAILABLE, line, as_json=as_json, name=answer["name"])
    return _report_lost(answer, as_json=as_json)


def _report_lost(answer: Mapping[str, Any] | None, *, as_json: bool) -> int:
    if answer is None:
        line = "no watcher has this token: the lease was released, or its watcher was killed"
    elif not answer:
        line = "the watcher of this token does not answer in time, so the lease cannot be trusted"
    else:
        line = str(answer["detail"])
    facts = {key: answer[key] for key in ("name", "fence") if answer and key in answer}
    return errors.report("lost", codes.LOST, line, as_json=as_json, **facts)
