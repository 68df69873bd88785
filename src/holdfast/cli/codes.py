"""Exit codes: a script, cron or a monitor can tell outcomes apart without reading a line.

The codes are those of `sysexits.h` where one fits, and otherwise those that shells and `timeout` use for programs, so
that they seldom collide with the codes of the programs that `run` starts.
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
OUTPUT = 74
BUSY = 75
NO_PERMISSION = 77
LOST = 79
MAX_HOLD = 124
CANNOT_RUN = 126
NO_PROGRAM = 127
SIGNAL = 128

MEANINGS = {
    OK: "success; for `run`: the program ended with 0 and held the lease to its end, or with --once an earlier run had "
    "succeeded",
    ATTENTION: "`doctor`, `bench`, `demo`: there is a finding; `break`, `pool set`, `pool break`, `registry take`, "
    "`registry hand-off`, `dlq purge`: you answered no; `install`: a package was not installed; `queue check`: a "
    "message is not in exactly one place",
    CRITICAL: "`doctor`: the engine is not reliable",
    USAGE: "bad usage: an option, a name or a URL was refused before anything was started",
    NOT_FOUND: "`break`: the name has no holder; `registry`: the key has no owner; `pool`: no such pool or item; "
    "`dlq`: no such dead letter; `release`: no watcher has the token",
    UNAVAILABLE: "the engine cannot be used, or the system starts no more processes; nothing was started; `release`: "
    "the release did not reach the engine",
    INTERNAL: "a bug in holdfast itself",
    OUTPUT: "the answer could not be written to standard output, for example because the disk is full",
    BUSY: "another holder kept the name until the timeout, a borrower has an item that was to be removed, a rate limit "
    "is used up, or a queue is full; nothing was started",
    NO_PERMISSION: "the engine refused the password, the user lacks a right (also on a file), or the admin secret is "
    "wrong; nothing was started",
    LOST: "`run`: the lease was lost; the program was ended, or not started if the loss came before; `check`, "
    "`release`: the lease of the token is lost, or cannot be trusted",
    MAX_HOLD: "`run`: the program was ended because it held the lease for longer than --max-hold",
    CANNOT_RUN: "`run`: the program was found, but cannot be executed",
    NO_PROGRAM: "`run`: no such program",
    SIGNAL: "128 + n: signal n ended the command, or the program that `run` had started",
}


def code_of(error: errors.HoldfastError) -> int:
    """Return the exit code of this error."""
    if isinstance(error, errors.Unavailable):
        return NO_PERMISSION if error.reason == "no permission" else UNAVAILABLE
    for kind, code in (
        (errors.NotAcquired, BUSY),
        (errors.LeaseLost, LOST),
        (errors.NotFound, NOT_FOUND),
        (errors.ItemsLent, BUSY),
        (errors.QueueFull, BUSY),
        (errors.NotPermitted, NO_PERMISSION),
        (ValueError, USAGE),
    ):
        if isinstance(error, kind):
            return code
    return INTERNAL
