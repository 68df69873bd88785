"""Which right a user lacks, and the ACL rule that grants it.

A server names the command that it refused, but neither the key nor the channel: this module knows those. About a
command inside a script, older servers name only the script and the line, and this module looks the command up there.
"""

from __future__ import annotations

import re
from functools import cache

from holdfast.engines.redis.keys import PREFIX
from holdfast.engines.redis.scripts import SCRIPTS

_COMMAND = re.compile(r"run the '([^']+)' command")
_KEY, _CHANNEL = re.compile(r"\bkeys?\b"), re.compile(r"\bchannels?\b")
# The hash of a script, and the line that was refused: Redis 6.2 writes f_HASH, and a blank before the number.
_LINE = re.compile(r"\b(?:f_)?([0-9a-f]{40})\b.*@user_script: ?(\d+)")
_CALL = re.compile(r"\b(?:redis\.p?call|write)\('([A-Z]+)'")
# Redis 6.2 names a command without its subcommand: these are the ones that the engine uses.
_SUBCOMMANDS = {
    "client": ("client|setname",),
    "cluster": ("cluster|slots", "cluster|info"),
    "config": ("config|get", "config|set"),
    "sentinel": ("sentinel|get-master-addr-by-name",),
}


def grant_hint(text: str, prefix: str = PREFIX, channel: str = "") -> str:
    """Return what to append to an error with this text: the ACL rule that grants the missing right, or nothing.

    `channel`: the channel of the command; without it, the hint names the channels of wake-ups.
    """
    rule = _missing_rule(text, prefix, channel)
    return f"; to grant it: ACL SETUSER ... {rule}" if rule else ""


def _missing_rule(text: str, prefix: str, channel: str) -> str:
    named = _COMMAND.search(text)
    if named:
        return _allow(_SUBCOMMANDS.get(named[1].lower(), (named[1],)))
    if _CHANNEL.search(text):
        return f"&{channel or f'{prefix}:wake:*'}"
    if _KEY.search(text):
        return f"~{prefix}:*"
    line = _LINE.search(text)
    return _allow(_commands_on_line(line[1], int(line[2]))) if line else ""


def _commands_on_line(sha: str, line: int) -> tuple[str, ...]:
    """Return the commands on that line of a script; all commands of the script if the line has none."""
    text = _texts().get(sha, "")
    found = _CALL.findall("".join(text.splitlines()[line - 1 : line])) or _CALL.findall(text)
    return tuple(dict.fromkeys(found))


def _allow(commands: tuple[str, ...]) -> str:
    return " ".join(f"+{command.lower()}" for command in commands)


@cache
def _texts() -> dict[str, str]:
    return {script.sha: script.text for script in SCRIPTS.values()}
