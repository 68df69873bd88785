"""Commands to scripts, replies to answers.

One Lua file per command; what they share stands in three more that they include. Scripts are called by their hash; a
server that does not know one is sent the text itself. All bytes of a command that never change are packed once.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from holdfast.commands import (
    Acquire,
    Answer,
    Break,
    Busy,
    Command,
    Done,
    Granted,
    Mark,
    Marked,
    NotHeld,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Seat,
    Show,
    Standing,
    Undo,
)

if TYPE_CHECKING:
    from collections.abc import Callable

LAYOUT = 1
PREFIX = f"hf{LAYOUT}"


def bulk(text: str) -> bytes:
    """One argument in the server's protocol."""
    data = text.encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def packed(*arguments: str) -> bytes:
    """A whole command in the server's protocol."""
    return b"*%d\r\n" % len(arguments) + b"".join(map(bulk, arguments))


def record_key(prefix: str, name: str) -> str:
    """The key of a name's record. The name is its hash tag, so that all keys of the name share one slot."""
    if "}" in name or "%" in name:
        name = name.replace("%", "%25").replace("}", "%7D")
    return f"{prefix}:{{{name}}}"


def script_text(file: str) -> str:
    """A script with the texts that it includes."""
    folder = files("holdfast.engines.redis") / "lua"
    lines = (folder / file).read_text(encoding="utf-8").splitlines(keepends=True)
    mark = "--@include "
    return "".join(
        script_text(line.strip().removeprefix(mark)) if line.strip().startswith(mark) else line for line in lines
    )


class Script:
    """One command's script: its text, its hash, and its packed beginning."""

    def __init__(self, file: str, arguments: int) -> None:
        self.text = script_text(f"{file}.lua")
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()  # noqa: S324 - the server's own name for it
        count = b"*%d\r\n" % (3 + 1 + _FIXED + arguments)
        self.head = count + bulk("EVALSHA") + bulk(self.sha) + bulk("1")
        self.whole_head = count + bulk("EVAL") + bulk(self.text) + bulk("1")


_FIXED = 4

SCRIPTS: dict[type, Script] = {
    Acquire: Script("acquire", 4),
    Renew: Script("renew", 2),
    Release: Script("release", 3),
    Undo: Script("undo", 1),
    Break: Script("break", 2),
    Mark: Script("mark", 0),
    Show: Script("show", 0),
}


def _token(token: str) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(token), token.encode("ascii"))


# An owner and a ttl are the same from one command to the next.
_often = lru_cache(maxsize=64)(bulk)
_number = lru_cache(maxsize=64)(lambda number: bulk(str(number)))
_ONE, _ZERO = bulk("1"), bulk("0")

_REST: dict[type, Callable[[Any], bytes]] = {
    Acquire: lambda ask: _token(ask.token) + _often(ask.owner) + _number(ask.ttl_ms) + (_ONE if ask.wait else _ZERO),
    Renew: lambda ask: _token(ask.token) + _number(ask.ttl_ms),
    Release: lambda ask: _token(ask.token) + (_ONE if ask.entomb else _ZERO) + _often(ask.to),
    Undo: lambda ask: _token(ask.token),
    Break: lambda ask: bulk(str(ask.fence)) + bulk(ask.reason),
    Mark: lambda _ask: b"",
    Show: lambda _ask: b"",
}


class Packer:
    """Packs the commands of one client."""

    def __init__(self, prefix: str, client: str, memory_ms: int, mark_ms: int) -> None:
        self.prefix = prefix
        self.channels = f"{prefix}:wake:"
        self.channel = self.channels + client
        # Most clients use few names, over and over.
        self._key = lru_cache(maxsize=512)(lambda name: bulk(record_key(prefix, name)))
        self._fixed = bulk(client) + bulk(str(memory_ms)) + bulk(str(mark_ms)) + bulk(self.channels)

    def pack(self, command: Command, *, whole: bool = False) -> bytes:
        """The bytes of a command; `whole` for a server that does not know the script."""
        kind = type(command)
        script = SCRIPTS[kind]
        head = script.whole_head if whole else script.head
        return b"%b%b%b%b" % (head, self._key(command.name), self._fixed, _REST[kind](command))


def answered(reply: list[Any]) -> Answer:
    """What a script's reply means."""
    return _ANSWERS[reply[0]](reply)


def _standing(reply: list[Any]) -> Standing:
    _, fence, offered, token, owner, held, since_ms, remaining_ms, *rest = reply
    holder = Seat(owner, token, int(held), since_ms, remaining_ms) if token else None
    waiters = tuple(Seat(rest[at + 1], rest[at], 0, rest[at + 2], 0) for at in range(0, len(rest), 3))
    return Standing(int(fence), holder, bool(offered), waiters)


_RENEWED, _RELEASED = Renewed(), Released()
_ANSWERS: dict[str, Callable[[list[Any]], Answer]] = {
    "granted": lambda reply: Granted(int(reply[1])),
    "busy": lambda reply: Busy(reply[1], int(reply[2]), reply[3], None if reply[4] < 0 else reply[4]),
    "refused": lambda reply: Refused(reply[1]),
    "renewed": lambda _reply: _RENEWED,
    "released": lambda _reply: _RELEASED,
    "not held": lambda reply: NotHeld(reply[1], reply[2]),
    "done": lambda _reply: Done(),
    "marked": lambda reply: Marked(reply[1], reply[2]),
    "standing": _standing,
}
