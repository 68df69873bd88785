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
OUTPUT = 74
BUSY = 75
NO_PERMISSION = 77
LOST = 79
MAX_HOLD = 124
CANNOT_RUN = 126
NO_PROGRAM = 127
SIGNAL = 128

MEANINGS = {
    OK: "all is well; for `run`: the program ended with 0 and the lease was held to its end, or with --once it had "
    "been done before",
    ATTENTION: "`doctor`, `bench`, `demo`: something should be looked at; `break`, `pool set`, `pool break`, "
    "`directory take`, `directory hand-off`, `dlq purge`: you were asked and said no; `install`: something was not "
    "installed; `queue check`: not every message is in exactly one place",
    CRITICAL: "`doctor`: the engine cannot be relied on",
    USAGE: "bad usage: an option, a name or a URL was refused before anything was started",
    NOT_FOUND: "`break`, `directory show`, `directory take`, `directory hand-off`: nobody holds that name or key; "
    "`pool`: there is no such pool or item; `dlq`: there is no such dead letter",
    UNAVAILABLE: "the engine cannot be used; nothing was started",
    INTERNAL: "a mistake in holdfast itself",
    OUTPUT: "what there is to tell could not be written to standard output: a full disk, for instance",
    BUSY: "somebody else held the name until the timeout ended, has an item that was to go, nothing is left of a "
    "limit, or a queue is full; nothing was started",
    NO_PERMISSION: "the engine refused the password, the user lacks a right, also on a file, or the admin secret; "
    "nothing was started",
    LOST: "`run`: the lease was lost; the program was ended, or not even started if it was lost before",
    MAX_HOLD: "`run`: the program was ended because it held for longer than --max-hold",
    CANNOT_RUN: "`run`: the program was found, but cannot be executed",
    NO_PROGRAM: "`run`: no such program",
    SIGNAL: "128 + n: ended by signal n; for `run`: the program was",
}

# By what is wrong; where it is an embedded engine that is, by these.
_HINTS_OF_FILES = {
    "no permission": "give the file and its directory to this user, or name another by --url or HOLDFAST_URL",
    "read-only": "that disk cannot be written to: name another file by --url or HOLDFAST_URL",
    "unreachable": "name a file that this user can make, by --url or HOLDFAST_URL",
}
_HINTS_OF_FOLDERS = {
    "no permission": "let this user, or a group that it is in, write there, or name another directory",
    "read-only": "that disk cannot be written to: name another directory",
    "unreachable": "is the volume mounted, and the path right?",
    "no such file": "is --url (or HOLDFAST_URL) the directory that the others name? The first `holdfast run NAME -- "
    "CMD` there, or lock of a program, makes what is missing",
}
_HINTS_OF = {"sqlite": _HINTS_OF_FILES, "file": _HINTS_OF_FOLDERS, "directory": _HINTS_OF_FOLDERS}
_HINTS = {
    "unreachable": "is it running, and is --url (or HOLDFAST_URL) right?",
    "no such file": "is --url (or HOLDFAST_URL) right?",
    "no permission": "check user and password in the URL, and the rights that docs/redis.md lists",
    "read-only": "connect to the primary; or find out why it cannot save",
    "stalled": "`holdfast doctor` tells more",
    "full": "free some memory or disk there",
}
# Where to look for what there is, by the command that did not find it.
_LOOKS = {
    "pool": "`holdfast pool ls` shows which pools there are, `holdfast pool show` the items of one, and who has them",
    "directory": "`holdfast directory ls` shows what is owned",
    "dlq": "`holdfast dlq ls` shows the dead letters of a queue",
}


def code_of(error: errors.HoldfastError) -> int:
    """Which code tells this error."""
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


def hint_for(error: errors.HoldfastError, command: str = "") -> str:
    """What to do next; empty where the error says it all."""
    if isinstance(error, errors.Unavailable):
        return (_HINTS | _HINTS_OF.get(error.engine, {})).get(error.reason, "")
    if isinstance(error, errors.NotAcquired):
        return "wait longer with --timeout, or look at it with `holdfast show`"
    if isinstance(error, errors.ItemsLent):
        return "--leave has them go when they come back"
    if isinstance(error, errors.NotFound):
        return _LOOKS.get(command, "`holdfast ls` shows what is held")
    return ""
