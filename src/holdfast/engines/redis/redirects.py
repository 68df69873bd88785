"""Decide how to go on with a command that a server refused: pure functions, for both transports.

An error reply proves that the server did not apply the command, so the transport may send it again, to the same server
or to another one. This module does not decide about lost replies: the core resends such a command with its token.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.errors import MOVING, ReplyLost, Unavailable

# The steps. FAIL: raise the error. MOVED: the slot is on another server now. ASK: send the command once to another
# server. RETRY: send it again in a moment. REFRESH: find out which server serves the name now.
FAIL, MOVED, ASK, RETRY, REFRESH = "fail", "moved", "ask", "retry", "refresh"

_STEPS = {
    "MOVED": MOVED,
    "ASK": ASK,
    "TRYAGAIN": RETRY,
    "CLUSTERDOWN": REFRESH,
    "READONLY": REFRESH,
    "MASTERDOWN": REFRESH,
    "NOREPLICAS": REFRESH,
    "LOADING": REFRESH,
    "UNBLOCKED": REFRESH,
}
SLOTS = 16384
_IN_SCRIPT = "Error running script"
# A script stopped at a value that it cannot use: another program wrote under our keys.
_UNUSABLE_DATA = re.compile(r"WRONGTYPE |^CORRUPT |user_script:\d+: (?!@)(?!ERR )(?!-)")
CORRUPT = "CORRUPT"
_NOT_ALLOWED = ("The user executing the script can't", "ACL failure in script")


class Redirect(NamedTuple):
    """The next step for a command that was not answered, and the server that the reply named, if it named one."""

    step: str
    slot: int = 0
    host: str = ""
    port: int = 0


class Redirected(Unavailable):
    """A server refused a command that another server, or the same one later, may answer.

    Callers never see it: the transport follows it to an answer, or raises a plain `Unavailable`.
    """

    reply = ""


def redirect_of(error: Unavailable) -> Redirect:
    """Return the next step for a command that met this error."""
    if isinstance(error, ReplyLost):
        return Redirect(FAIL)
    if not isinstance(error, Redirected):
        return Redirect(REFRESH if error.reason == MOVING else FAIL)
    step = _STEPS.get(error_code(error.reply), FAIL)
    if step not in (MOVED, ASK):
        return Redirect(step)
    # MOVED 3999 127.0.0.1:6381. Without a host it is the server that answered; `?` is a host that it does not know.
    found = re.fullmatch(r"\w+ (\d{1,5}) (.*):(\d{1,5})", error.reply.strip(), re.ASCII)
    if found is None or found[2] == "?" or int(found[1]) >= SLOTS:
        return Redirect(REFRESH)
    return Redirect(step, int(found[1]), found[2].strip("[]"), int(found[3]))


def detail_of(error: Unavailable) -> str:
    """Return the detail for people about a command that no server answered."""
    circled = isinstance(error, Redirected) and _STEPS.get(error_code(error.reply)) == MOVED
    return f"{error.detail}; its servers do not agree on the owner of that slot" if circled else error.detail


def is_redirect(text: str) -> bool:
    """Return whether an error reply means that another server, or the same one later, may answer."""
    return error_code(text) in _STEPS


def error_code(text: str) -> str:
    """Return the code of an error reply, such as MOVED; for an error inside a script, the code of the inner error."""
    if any(each in text for each in _NOT_ALLOWED):
        return "NOPERM"
    if _UNUSABLE_DATA.search(text):
        return CORRUPT
    if _IN_SCRIPT in text:
        inner = re.search(r": -([A-Z]+) ", text)
        return inner[1] if inner else "ERR"
    return text.split(" ", 1)[0].rstrip(":")
