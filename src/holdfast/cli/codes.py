"""Exit codes: what a script, cron or a monitor can tell apart without reading a line.

The names of `sysexits.h` where there is one, and what shells and `timeout` use for programs; so that they seldom meet
what a program says by itself.
"""

from __future__ import annotations

from holdfast import errors

OK = 0
ATTENTION = 1
CRITICAL = 2
USAGE = 64
NOT_FOUND = 66
UNAVAILABLE = 69
INTERNAL = 70
BUSY = 75
NO_PERMISSION = 77
LOST = 79
MAX_HOLD = 124
CANNOT_RUN = 126
NO_PROGRAM = 127
SIGNAL = 128

MEANINGS = {
    OK: "all is well; for `run`: the program ended with 0 and the lease was held to its end",
    ATTENTION: "`doctor`, `bench`, `demo`: something should be looked at; `install`: something was not installed",
    CRITICAL: "`doctor`: the engine cannot be relied on",
    USAGE: "bad usage: an option, a name or a URL was refused before anything was started",
    NOT_FOUND: "`break`: nobody holds that name",
    UNAVAILABLE: "the engine cannot be used; nothing was started",
    INTERNAL: "a mistake in holdfast itself",
    BUSY: "somebody else held the name until the timeout ended; nothing was started",
    NO_PERMISSION: "the engine refused the password, or the user lacks a right; nothing was started",
    LOST: "`run`: the lease was lost while the program ran, and the program was ended",
    MAX_HOLD: "`run`: the program was ended because it held for longer than --max-hold",
    CANNOT_RUN: "`run`: the program was found, but cannot be executed",
    NO_PROGRAM: "`run`: no such program",
    SIGNAL: "128 + n: ended by signal n; for `run`: the program was",
}

_HINTS = {
    "unreachable": "is it running, and is --url (or HOLDFAST_URL) right?",
    "no such file": "is --url (or HOLDFAST_URL) right?",
    "no permission": "check user and password in the URL, and the rights that docs/redis.md lists",
    "read-only": "connect to the primary, or give the directory to this user",
    "stalled": "`holdfast doctor` tells more",
    "full": "free some memory or disk there",
}


def code_of(error: errors.HoldfastError) -> int:
    """Which code tells this error."""
    if isinstance(error, errors.Unavailable):
        return NO_PERMISSION if error.reason == "no permission" else UNAVAILABLE
    for kind, code in (
        (errors.NotAcquired, BUSY),
        (errors.LeaseLost, LOST),
        (errors.NotFound, NOT_FOUND),
        (ValueError, USAGE),
    ):
        if isinstance(error, kind):
            return code
    return INTERNAL


def hint_for(error: errors.HoldfastError) -> str:
    """What to do next; empty where the error says it all."""
    if isinstance(error, errors.Unavailable):
        return _HINTS.get(error.reason, "")
    if isinstance(error, errors.NotAcquired):
        return "wait longer with --timeout, or look at it with `holdfast show`"
    if isinstance(error, errors.NotFound):
        return "`holdfast ls` shows what is held"
    return ""
