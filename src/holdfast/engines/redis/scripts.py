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
    Begin,
    Break,
    Busy,
    Claim,
    Command,
    Done,
    Fetch,
    Finish,
    Full,
    Granted,
    Kept,
    Letters,
    List,
    Listing,
    Mark,
    Marked,
    NotHeld,
    Post,
    Quit,
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
from holdfast.engines.redis import tallies

if TYPE_CHECKING:
    from collections.abc import Callable

LAYOUT = 1
PREFIX = f"hf{LAYOUT}"


def prefix_of(namespace: str) -> str:
    """What every key and channel begins with. A namespace is a part of it, so that a user's rights may end there."""
    return f"{PREFIX}:{namespace}" if namespace else PREFIX


def layout_key(prefix: str) -> str:
    """Where a later version would leave word that this place is no longer kept as this version keeps it."""
    return f"{prefix}:layout"


def bulk(text: str) -> bytes:
    """One argument in the server's protocol."""
    data = text.encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def packed(*arguments: str) -> bytes:
    """A whole command in the server's protocol."""
    return b"*%d\r\n" % len(arguments) + b"".join(map(bulk, arguments))


def tag(name: str) -> str:
    """The hash tag of a name: what its slot is counted from. Entries share the slot of their directory."""
    if "\0" in name:
        name = name.partition("\0")[0]
    return name.replace("%", "%25").replace("}", "%7D") if "}" in name or "%" in name else name


def record_key(prefix: str, name: str) -> str:
    """The key of a name's record. The name is its hash tag, so that all keys of the name share one slot."""
    key = f"{prefix}:{{{tag(name)}}}"
    if "\0" not in name:
        return key
    entry = name.partition("\0")[2].replace("%", "%25").replace(":", "%3A")
    return f"{key}:e:{entry}"


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
        self._arguments = arguments

    def head(self, keys: int, *, whole: bool = False) -> bytes:
        """Up to the first key; `whole` sends the text instead of its hash."""
        count = b"*%d\r\n" % (3 + keys + _FIXED + self._arguments)
        return count + (bulk("EVAL") + bulk(self.text) if whole else bulk("EVALSHA") + bulk(self.sha)) + bulk(str(keys))


class TallyScript:
    """The script of a tally's command, which has as many arguments as it is given."""

    def __init__(self, file: str) -> None:
        self.text = script_text(f"{file}.lua")
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()  # noqa: S324 - as above
        self._known = bulk("EVALSHA") + bulk(self.sha)

    def pack(self, arguments: tuple[str, ...], *keys: str, whole: bool = False) -> bytes:
        """The whole command; `whole` sends the text instead of its hash."""
        head = bulk("EVAL") + bulk(self.text) if whole else self._known
        count = 3 + len(keys) + len(arguments)
        return b"*%d\r\n%b%b%b%b" % (count, head, _often(len(keys)), b"".join(map(bulk, keys)), _all(arguments))


@lru_cache(maxsize=64)
def _all(arguments: tuple[str, ...]) -> bytes:
    """Most of them are the same from one command to the next."""
    return b"".join(map(bulk, arguments))


_FIXED = 2

SCRIPTS: dict[type, Script] = {
    Acquire: Script("acquire", 4),
    Renew: Script("renew", 2),
    Release: Script("release", 2),
    Undo: Script("undo", 1),
    Break: Script("break", 2),
    Mark: Script("mark", 0),
    Show: Script("show", 0),
    Begin: Script("begin", 4),
    Finish: Script("finish", 4),
}


_EMPTY = bulk("")
_NEVER, _RUNG, _POPS = bulk("0"), bulk("1"), bulk("2")


@lru_cache(maxsize=64)
def _often(text: str | int) -> bytes:
    """An owner, a ttl: the same from one command to the next."""
    return bulk(str(text))


def _release(ask: Release) -> bytes:
    how = bulk(f"{int(ask.entomb)}{ask.to}") if ask.entomb or ask.to else _EMPTY
    return b"%b%b" % (bulk(ask.token), how)


_REST: dict[type, Callable[[Any], bytes]] = {
    Renew: lambda ask: bulk(ask.token) + _often(ask.ttl_ms),
    Release: _release,
    Undo: lambda ask: bulk(ask.token),
    Break: lambda ask: bulk(str(ask.fence)) + bulk(ask.reason),
    Mark: lambda _ask: b"",
    Show: lambda _ask: b"",
    Begin: lambda ask: bulk(ask.ask.token) + _often(ask.ask.owner) + _often(ask.ask.ttl_ms) + _NEVER,
    Finish: lambda ask: _release(ask.end) + bulk(ask.keep.note) + _often(ask.keep.window_ms),
}


class EntryScript(TallyScript):
    """The script of a directory's command: as many arguments as there are shelves, and the key of the directory."""

    def __init__(self, file: str, arguments: Callable[[tuple[str, ...], str, Any], tuple[str, ...]]) -> None:
        super().__init__(file)
        self._arguments = arguments

    def pack_entry(self, prefix: str, fixed: tuple[str, ...], ask: Any, *, slots: bool, whole: bool) -> bytes:
        place, key = record_key(prefix, ask.name.partition("\0")[0]), record_key(prefix, ask.name)
        keys = (key, f"{key}:-") if slots else (key,)
        return self.pack(self._arguments(fixed, place, ask), *keys, whole=whole)


def _entry(ask: Any) -> str:
    entry: str = ask.name.partition("\0")[2]
    return entry


def _claim(fixed: tuple[str, ...], place: str, ask: Any) -> tuple[str, ...]:
    lease = (ask.ask.token, ask.ask.owner, str(ask.ask.ttl_ms), "0")
    return (*fixed, *lease, place, _entry(ask), str(ask.limit), ask.group, ask.label, *ask.shelves)


def _quit(fixed: tuple[str, ...], place: str, ask: Any) -> tuple[str, ...]:
    return (
        *fixed,
        ask.end.token,
        "1" if ask.end.entomb else "",
        place,
        _entry(ask),
        ask.heir,
        str(ask.heir_ms),
        *ask.shelves,
    )


ENTRIES: dict[type, EntryScript] = {
    Claim: EntryScript("claim", _claim),
    Quit: EntryScript("quit", _quit),
    List: EntryScript("list", lambda _fixed, _place, ask: (ask.shelf, ask.prefix, ask.after, str(ask.limit))),
    Post: EntryScript("post", lambda fixed, place, ask: (*fixed, place, ask.letter, ask.text)),
    Fetch: EntryScript("fetch", lambda _fixed, place, ask: (place, ask.token)),
}
TALLIES: dict[type, TallyScript] = {kind: TallyScript(file) for kind, file in tallies.FILES.items()}


class Packer:
    """Packs the commands of one client.

    With `slots` a second key is declared, which never exists. A cluster then refuses every command on a name whose slot
    is on its way to another server, before it has begun: half of its keys may be here and half there.
    """

    def __init__(self, prefix: str, client: str, memory_ms: int, *, slots: bool = False) -> None:
        self.prefix = prefix
        self.channel = f"{prefix}:wake:{client}"
        fixed = bulk(self.channel) + bulk(str(memory_ms))
        count = 2 if slots else 1
        heads = {kind: script.head(count) for kind, script in SCRIPTS.items()}

        # Most clients use few names, over and over.
        @lru_cache(maxsize=512)
        def head(kind: type, name: str) -> bytes:
            key = record_key(prefix, name)
            return heads[kind] + bulk(key) + (bulk(f"{key}:-") if slots else b"") + fixed

        self._fixed = (self.channel, str(memory_ms))
        self._head = head
        self._heads = heads
        self._keys = count

    def pack(self, command: Command, *, whole: bool = False, pops: bool = False) -> bytes:
        """The bytes of a command; `whole` for a server that does not know the script.

        `pops` for a waiter that will pop its bell instead of listening for it.
        """
        kind = type(command)
        if kind in ENTRIES:
            return ENTRIES[kind].pack_entry(self.prefix, self._fixed, command, slots=self._keys > 1, whole=whole)
        if kind in TALLIES:
            key = f"{record_key(self.prefix, command.name)}:{command.shelf}"  # type: ignore[union-attr]
            return TALLIES[kind].pack(tallies.ARGUMENTS[kind](command), key, whole=whole)
        head = self._head(kind, command.name)  # type: ignore[arg-type]
        if whole:
            head = SCRIPTS[kind].head(self._keys, whole=True) + head.removeprefix(self._heads[kind])
        if isinstance(command, Acquire):
            wait = _POPS if pops else _RUNG if command.wait else _NEVER
            return b"%b%b%b%b%b" % (head, bulk(command.token), _often(command.owner), _often(command.ttl_ms), wait)
        return head + _REST[kind](command)

    def pack_pop(self, ask: Acquire, seconds: float) -> bytes:
        """Block until this waiter's bell is rung, or that long."""
        return packed("BLPOP", f"{record_key(self.prefix, ask.name)}:k:{ask.token}", f"{seconds:.3f}")


def answered(kind: type, reply: Any) -> Answer:
    """What a script's reply to that kind of command means."""
    if type(reply) is str:
        return Granted(int(reply))
    if type(reply) is int:
        return _YES[kind]
    return _ANSWERS[reply[0]](reply)


def time_of(reply: Any) -> int | None:
    """The server's time in the reply to a renewal, in microseconds; no error reply has one."""
    if type(reply) is list:
        return int(reply[3])
    return reply if type(reply) is int else None


def _letters(reply: list[Any]) -> Letters:
    parts = (each.partition("\n") for each in reply[1:])
    return Letters(tuple((letter, text) for letter, _, text in parts))


def _listing(reply: list[Any]) -> Listing:
    _, last, *rest = reply
    entries = []
    for at in range(0, len(rest), 6):
        entry, token, owner, fence, since_ms, remaining_ms = rest[at : at + 6]
        entries.append((entry, Seat(owner, token, int(fence), since_ms, remaining_ms)))
    return Listing(tuple(entries), last)


def _standing(reply: list[Any]) -> Standing:
    _, fence, offered, token, owner, held, since_ms, remaining_ms, *rest = reply
    holder = Seat(owner, token, int(held), since_ms, remaining_ms) if token else None
    waiters = tuple(Seat(rest[at + 1], rest[at], 0, rest[at + 2], 0) for at in range(0, len(rest), 3))
    return Standing(int(fence), holder, bool(offered), waiters)


# What the plain answer to a command says.
_YES: dict[type, Answer] = {
    Renew: Renewed(),
    Release: Released(),
    Finish: Released(),
    Quit: Released(),
    Break: Released(),
    Undo: Done(),
}
_ANSWERS: dict[str, Callable[[list[Any]], Answer]] = {
    "busy": lambda reply: Busy(reply[1], int(reply[2]), reply[3], None if reply[4] < 0 else reply[4]),
    "refused": lambda reply: Refused(reply[1]),
    "not held": lambda reply: NotHeld(reply[1], reply[2]),
    "marked": lambda reply: Marked(reply[1], reply[2]),
    "standing": _standing,
    "listing": _listing,
    "full": lambda reply: Full(reply[1]),
    "kept": lambda reply: Kept(reply[1], reply[2]),
    "letters": _letters,
    **tallies.ANSWERS,
}
