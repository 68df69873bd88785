"""What trouble means for the way of a command: decided here, once, for both forms. Pure: it only reads.

An error reply was given before the command was applied, so it may be sent again, here or elsewhere. A reply that was
lost is not decided here: the core sends such a command again, with its token.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.errors import MOVING, ReplyLost, Unavailable

# Stop: tell the caller. Go: this slot lives there now. Ask: only this once, there. Wait: it will be served in a moment.
# Look: find out who serves it now.
STOP, GO, ASK, WAIT, LOOK = "stop", "go", "ask", "wait", "look"

_STEPS = {
    "MOVED": GO,
    "ASK": ASK,
    "TRYAGAIN": WAIT,
    "CLUSTERDOWN": LOOK,
    "READONLY": LOOK,
    "MASTERDOWN": LOOK,
    "NOREPLICAS": LOOK,
    "LOADING": LOOK,
    "UNBLOCKED": LOOK,
}
_IN_SCRIPT = "Error running script"
_NOT_ALLOWED = ("The user executing the script can't", "ACL failure in script")


class Redirect(NamedTuple):
    """The next step of a command that was not answered; where a server was named, which one."""

    step: str
    slot: int = 0
    host: str = ""
    port: int = 0


class Redirected(Unavailable):
    """A server of several has refused a command that another one, or the same one later, may answer.

    Nobody outside meets it: the form follows it to an answer, or makes a plain `Unavailable` of it.
    """

    reply = ""


def turn(trouble: Unavailable) -> Redirect:
    """What to do with a command that met this."""
    if isinstance(trouble, ReplyLost):
        return Redirect(STOP)
    if not isinstance(trouble, Redirected):
        return Redirect(LOOK if trouble.reason == MOVING else STOP)
    step = _STEPS.get(word(trouble.reply), STOP)
    if step not in (GO, ASK):
        return Redirect(step)
    # MOVED 3999 127.0.0.1:6381; without a host it is the one that answered, and `?` is a host that nobody knows.
    found = re.fullmatch(r"\w+ (\d+) (.*):(\d+)", trouble.reply.strip())
    if found is None or found[2] == "?":
        return Redirect(LOOK)
    return Redirect(step, int(found[1]), found[2].strip("[]"), int(found[3]))


def told(trouble: Unavailable) -> str:
    """What people are told of a command that nobody answered for. Whoever was sent on to the end met no owner."""
    circled = isinstance(trouble, Redirected) and _STEPS.get(word(trouble.reply)) == GO
    return f"{trouble.detail}; its servers do not agree on who has that slot" if circled else trouble.detail


def astray(text: str) -> bool:
    """Whether an error reply says: not here, or not now."""
    return word(text) in _STEPS


def word(text: str) -> str:
    """The word that says what is wrong. Some trouble inside a script is told as trouble of the script."""
    if any(words in text for words in _NOT_ALLOWED):
        return "NOPERM"
    if _IN_SCRIPT in text:
        inner = re.search(r": -([A-Z]+) ", text)
        return inner[1] if inner else "ERR"
    return text.split(" ", 1)[0].rstrip(":")
