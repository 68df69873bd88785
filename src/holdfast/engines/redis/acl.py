"""Which right a user lacks, as far as the server tells it: what to grant.

A server names the command that it refuses, but neither the key nor the channel: those are known here. Of a command
inside a script older servers tell only the script and the line, and what stands there is known here, too.
"""

from __future__ import annotations

import re
from functools import cache

from holdfast.engines.redis.keys import PREFIX
from holdfast.engines.redis.scripts import SCRIPTS

_COMMAND = re.compile(r"run the '([^']+)' command")
_KEY, _CHANNEL = re.compile(r"\bkeys?\b"), re.compile(r"\bchannels?\b")
# A script by its hash, and the line that was refused: Redis 6.2 has f_HASH, and a blank before the number.
_PLACE = re.compile(r"\b(?:f_)?([0-9a-f]{40})\b.*@user_script: ?(\d+)")
_CALL = re.compile(r"\b(?:redis\.p?call|write)\('([A-Z]+)'")
# Redis 6.2 names a command without its second word: those that are said here.
_SECOND = {
    "client": ("client|setname",),
    "cluster": ("cluster|slots", "cluster|info"),
    "config": ("config|get", "config|set"),
    "sentinel": ("sentinel|get-master-addr-by-name",),
}


def to_grant(text: str, prefix: str = PREFIX, channel: str = "") -> str:
    """What would let the user do what was refused with this text, to be said behind it; empty if that is not told.

    `channel` is the one that was asked for, where it is not that of wake-ups.
    """
    rights = _lacking(text, prefix, channel)
    return f"; to grant it: ACL SETUSER ... {rights}" if rights else ""


def _lacking(text: str, prefix: str, channel: str) -> str:
    named = _COMMAND.search(text)
    if named:
        return _plus(_SECOND.get(named[1].lower(), (named[1],)))
    if _CHANNEL.search(text):
        return f"&{channel or f'{prefix}:wake:*'}"
    if _KEY.search(text):
        return f"~{prefix}:*"
    place = _PLACE.search(text)
    return _plus(_called(place[1], int(place[2]))) if place else ""


def _called(sha: str, line: int) -> tuple[str, ...]:
    """The commands on that line of a script; all of the script, where the line does not tell."""
    text = _texts().get(sha, "")
    found = _CALL.findall("".join(text.splitlines()[line - 1 : line])) or _CALL.findall(text)
    return tuple(dict.fromkeys(found))


def _plus(commands: tuple[str, ...]) -> str:
    return " ".join(f"+{command.lower()}" for command in commands)


@cache
def _texts() -> dict[str, str]:
    return {script.sha: script.text for script in SCRIPTS.values()}
