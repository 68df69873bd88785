"""Error messages on standard error: one line for people, one JSON object for programs.

The object has an `outcome` (a short text), the `code`, the facts of that outcome, and the line as `error`. A line says
what happened, then what to do next.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast import errors
from holdfast.cli import codes
from holdfast.text import plain

# A pipe that poll() reports as writable has room for this many bytes.
_SHORT = 1000

# The remedies for `Unavailable`, by its reason; the engine's own hints come first.
_HINTS = {
    "unreachable": "is it running, and is --url (or HOLDFAST_URL) right?",
    "no such file": "is --url (or HOLDFAST_URL) right?",
    "no permission": "check user and password in the URL, and the rights that docs/redis.md lists",
    "read-only": "connect to the primary; or find out why the server cannot save",
    "stalled": "run `holdfast doctor` for details",
    "full": "free some memory or disk space there",
}
# `directory` is no engine, but a shared directory of `build_once` or `install`: the hints of the file engine fit there.
_HINTS_FROM = {"directory": "file"}
# The command that lists the existing names, for a command that did not find one.
_LISTS = {
    "pool": "`holdfast pool ls` lists the pools, `holdfast pool show` the items of a pool and their borrowers",
    "registry": "`holdfast registry ls` lists the keys that have an owner",
    "dlq": "`holdfast dlq ls` lists the dead letters of a queue",
}


def report(outcome: str, code: int, line: str, *, as_json: bool, **facts: Any) -> int:
    """Write the message to standard error and return `code`, also if standard error cannot be written."""
    line = " ".join(line.splitlines())
    message = {"outcome": outcome, "code": code, **facts, **({"error": line} if line else {})}
    text = json.dumps(message) if as_json else f"holdfast: {plain(line)}" if line else ""
    if text:
        with suppress(OSError):
            sys.stderr.write(f"{text}\n")
    return code


def report_cancelled(*, as_json: bool, **facts: Any) -> int:
    """Report that the user answered no to the confirmation prompt."""
    return report("refused", codes.ATTENTION, "nothing was done", as_json=as_json, **facts)


def remark(line: str) -> None:
    """Write a remark to standard error without blocking; drop it if the stream has no room.

    A process that renews a lease or keeps a deadline must not wait for a reader that stopped reading.
    """
    with suppress(OSError, ValueError, AttributeError):  # no such stream, or a stream without a descriptor
        writable = select.poll()
        writable.register(sys.stderr, select.POLLOUT)
        if writable.poll(0):
            os.write(sys.stderr.fileno(), f"holdfast: {plain(line)[:_SHORT]}\n".encode(errors="backslashreplace"))


def report_error(error: errors.HoldfastError, *, as_json: bool, command: str = "") -> int:
    """Report an error of the library, with what to do next; return its exit code."""
    hint = hint_for(error, command)
    line = f"{str(error).rstrip('.')}{'; ' if hint else ''}{hint}"
    outcome, facts = _facts(error)
    return report(outcome, codes.code_of(error), line, as_json=as_json, **facts)


def hint_for(error: errors.HoldfastError, command: str = "") -> str:
    """Return what to do next; empty if the error text contains it. `command`: the first word of the command line."""
    if isinstance(error, errors.Unavailable):
        return (_HINTS | dict(_engine_hints(error.engine))).get(error.reason, "")
    if isinstance(error, errors.NotAcquired):
        return "wait longer with --timeout, or look at the holder with `holdfast show`"
    if isinstance(error, errors.ItemsLent):
        return "--leave removes them when they are returned"
    if isinstance(error, errors.NotFound):
        return _LISTS.get(command, "`holdfast ls` lists the leases")
    return ""


def _engine_hints(engine: str) -> Mapping[str, str]:
    # Imported here: most command lines meet no error, and `--help` needs no engine.
    from holdfast.engines import find_driver  # noqa: PLC0415

    with suppress(errors.InvalidConfig):  # an error that comes from no engine
        return find_driver(_HINTS_FROM.get(engine, engine)).hints
    return {}


def busy_facts(error: errors.NotAcquired) -> dict[str, Any]:
    """Return the holder, its fence, its remaining time, and how long the command waited."""
    return {
        "name": error.name,
        "holder": error.holder or None,
        "holder_fence": error.fence,
        "remaining": error.remaining,
        "waited": round(error.waited, 3),
    }


def _facts(error: errors.HoldfastError) -> tuple[str, dict[str, Any]]:
    match error:
        case errors.NotAcquired():
            return "busy", busy_facts(error)
        case errors.Unavailable():
            return "unavailable", {"engine": error.engine, "reason": error.reason}
        case errors.LeaseLost():
            return "lost", {"name": error.name, "fence": error.fence, "reason": error.reason}
        case errors.NotFound():
            return "not found", {"name": error.name}
        case ValueError():
            return "usage", {}
        case _:
            return "failed", {}


def refused_value(error: Any) -> str:
    """Return the value that typer refused: newer releases of typer name only the type that they expected."""
    refused = error.__cause__.errors() if hasattr(error.__cause__, "errors") else []
    return f", and not {refused[0]['input']!r}" if refused else ""
