"""What goes wrong is told on standard error: one line for people, one object for programs.

The object has an `outcome` in a word, the `code`, the facts of that outcome, and the line as `error`.
"""

from __future__ import annotations

import json
import os
import select
import sys
from contextlib import suppress
from typing import Any

from holdfast import errors
from holdfast.cli import codes
from holdfast.cli.plain import plain

# A pipe that is ready has room for this much.
_SHORT = 1000


def tell(outcome: str, code: int, line: str, *, as_json: bool, **facts: Any) -> int:
    """Tell it; the code, which stays what it is if nobody wants to hear."""
    line = " ".join(line.splitlines())
    said = {"outcome": outcome, "code": code, **facts, **({"error": line} if line else {})}
    text = json.dumps(said) if as_json else f"holdfast: {plain(line)}" if line else ""
    if text:
        with suppress(OSError):
            sys.stderr.write(f"{text}\n")
    return code


def remark(line: str) -> None:
    """Something to know while other things go on: said if it can be said at once.

    Whoever renews a lease, or keeps a timetable, must not wait for somebody who has stopped reading.
    """
    with suppress(OSError, ValueError, AttributeError):  # no such stream, or none that the system knows
        writable = select.poll()
        writable.register(sys.stderr, select.POLLOUT)
        if writable.poll(0):
            os.write(sys.stderr.fileno(), f"holdfast: {plain(line)[:_SHORT]}\n".encode(errors="backslashreplace"))


def tell_error(error: errors.HoldfastError, *, as_json: bool, command: str = "") -> int:
    """An error of the library, with what to do next."""
    hint = codes.hint_for(error, command)
    line = f"{str(error).rstrip('.')}{'; ' if hint else ''}{hint}"
    outcome, facts = _facts(error)
    return tell(outcome, codes.code_of(error), line, as_json=as_json, **facts)


def busy(error: errors.NotAcquired) -> dict[str, Any]:
    """Who holds it, under which fence, for how much longer, and how long it was waited."""
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
            return "busy", busy(error)
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


def as_written(error: Any) -> str:
    """The value that could not be read: newer releases of typer tell only what it should have been."""
    refused = error.__cause__.errors() if hasattr(error.__cause__, "errors") else []
    return f", and not {refused[0]['input']!r}" if refused else ""
