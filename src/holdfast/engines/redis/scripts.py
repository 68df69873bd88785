"""Commands to scripts.

One Lua file per command; what they share stands in more files, which they include. Scripts are called by their hash; a
server that does not know one is sent the text itself. All bytes of a command that never change are packed once.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from holdfast.commands import (
    ASKING,
    Acquire,
    Asking,
    Begin,
    Borrow,
    Break,
    BreakItem,
    ChangePool,
    ClaimEntry,
    Command,
    CoolItem,
    Extend,
    FetchMail,
    Finish,
    GetPoolStats,
    Hit,
    ListEntries,
    Mark,
    PoolHeartbeat,
    Release,
    ReleaseEntry,
    Renew,
    Return,
    SendToOwner,
    Show,
    Undo,
    UndoBorrow,
)
from holdfast.engines.redis import counters as tallies
from holdfast.engines.redis import queue as queues
from holdfast.names import between_braces

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


def bulk_of(word: str | bytes) -> bytes:
    """The same of a word that may be bytes."""
    data = word.encode() if isinstance(word, str) else word
    return b"$%d\r\n%b\r\n" % (len(data), data)


def packed(*arguments: str) -> bytes:
    """A whole command in the server's protocol."""
    return b"*%d\r\n" % len(arguments) + b"".join(map(bulk, arguments))


def tag(name: str) -> str:
    """The hash tag of a name: what its slot is counted from. Entries share the slot of their directory."""
    if "\0" in name:
        name = name.partition("\0")[0]
    return between_braces(name)


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
        return b"*%d\r\n%b%b%b%b" % (count, head, _often(len(keys)), b"".join(map(bulk, keys)), _arguments(arguments))


@lru_cache(maxsize=64)
def _arguments(arguments: tuple[str, ...]) -> bytes:
    """Most of them are the same from one command to the next."""
    return b"".join(map(bulk, arguments))


_FIXED = 2
_CHANGE_S, _ITEMS_PER_S = 10.0, 10_000  # also on a server that is busy otherwise

SCRIPTS: dict[type, Script] = {
    Acquire: Script("lease/acquire", 4),
    Renew: Script("lease/renew", 2),
    Release: Script("lease/release", 2),
    Undo: Script("lease/undo", 1),
    Break: Script("lease/break", 2),
    Mark: Script("lease/heartbeat", 0),
    Show: Script("lease/show", 0),
    Borrow: Script("pool/borrow", 9),
    Extend: Script("pool/extend", 4),
    Return: Script("pool/return", 5),
    UndoBorrow: Script("pool/take_back", 2),
    BreakItem: Script("pool/break_item", 4),
    CoolItem: Script("pool/cool_item", 3),
    ChangePool: Script("pool/change", 6),
    PoolHeartbeat: Script("pool/heartbeat", 1),
    GetPoolStats: Script("pool/count", 2),
    Begin: Script("counters/begin", 4),
    Finish: Script("counters/finish", 4),
}


_EMPTY = bulk("")
_NEVER, _RUNG, _POPS = bulk("0"), bulk("1"), bulk("2")


@lru_cache(maxsize=64)
def _often(text: str | int) -> bytes:
    """An owner, a ttl: the same from one command to the next."""
    return bulk(str(text))


def _release(ask: Release) -> bytes:
    _, token, entomb, to = ask
    how = bulk(f"{int(entomb)}{to}") if entomb or to else _EMPTY
    return b"$%d\r\n%b\r\n%b" % (len(token), token.encode(), how)


def _all(*values: str | int) -> bytes:
    return b"".join(bulk(str(value)) for value in values)


def _borrow(ask: Borrow) -> bytes:
    """What is asked for, up to the word about waiting."""
    head = _often(ask.kind) + bulk(ask.token) + _often(ask.holder) + _often(ask.ttl_ms) + _often(ask.cooldown_ms)
    return head + _often(ask.tag) + _often(ask.share_ppm) + _often(ask.permits)


_REST: dict[type, Callable[[Any], bytes]] = {
    Renew: lambda ask: bulk(ask.token) + _often(ask.ttl_ms),
    Release: _release,
    Undo: lambda ask: bulk(ask.token),
    Break: lambda ask: bulk(str(ask.fence)) + bulk(ask.reason),
    Mark: lambda _ask: b"",
    Show: lambda _ask: b"",
    Borrow: _borrow,
    Extend: lambda ask: _often(ask.kind) + _all(ask.item, ask.token, ask.ttl_ms),
    Return: lambda ask: _often(ask.kind) + _all(ask.item, ask.token, ask.cooldown_ms, int(ask.entomb)),
    UndoBorrow: lambda ask: _often(ask.kind) + _all(ask.token),
    BreakItem: lambda ask: _often(ask.kind) + _all(ask.item, ask.fence, ask.reason),
    CoolItem: lambda ask: _often(ask.kind) + _all(ask.item, ask.cooldown_ms),
    ChangePool: lambda ask: (
        _often(ask.kind) + _all(ask.how, "\x00".join(ask.items), int(ask.leave), ask.seed, ask.permits)
    ),
    PoolHeartbeat: lambda ask: _often(ask.kind),
    GetPoolStats: lambda ask: _often(ask.kind) + _all(ask.limit),
    Begin: lambda ask: bulk(ask.ask.token) + _often(ask.ask.holder) + _often(ask.ask.ttl_ms) + _NEVER,
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


class QueueScript(TallyScript):
    """The script of a queue's command: as many arguments as there are messages, and bodies are bytes."""

    def __init__(self, file: str, arguments: Callable[[Any], tuple[str | bytes, ...]]) -> None:
        super().__init__(file)
        self._arguments = arguments

    def pack_entry(self, prefix: str, fixed: tuple[str, ...], ask: Any, *, slots: bool, whole: bool) -> bytes:
        key = record_key(prefix, ask.name)
        keys = (key, f"{key}:-") if slots else (key,)
        head = bulk("EVAL") + bulk(self.text) if whole else self._known
        words = (*keys, *fixed, *self._arguments(ask))
        return b"*%d\r\n%b%b%b" % (3 + len(words), head, _often(len(keys)), b"".join(map(bulk_of, words)))


def _entry(ask: Any) -> str:
    entry: str = ask.name.partition("\0")[2]
    return entry


def _claim(fixed: tuple[str, ...], place: str, ask: Any) -> tuple[str, ...]:
    lease = (ask.ask.token, ask.ask.holder, str(ask.ask.ttl_ms), "0")
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


ENTRIES: dict[type, EntryScript | QueueScript] = {
    ClaimEntry: EntryScript("registry/claim", _claim),
    ReleaseEntry: EntryScript("registry/quit", _quit),
    ListEntries: EntryScript(
        "registry/list", lambda _fixed, _place, ask: (ask.shelf, ask.prefix, ask.after, str(ask.limit))
    ),
    SendToOwner: EntryScript("registry/send", lambda fixed, place, ask: (*fixed, place, ask.letter, ask.text)),
    FetchMail: EntryScript("registry/fetch", lambda _fixed, place, ask: (place, ask.token, *ask.read)),
    **{kind: QueueScript(file, queues.ARGUMENTS[kind]) for kind, file in queues.FILES.items()},
}
TALLIES: dict[type, TallyScript] = {kind: TallyScript(file) for kind, file in tallies.FILES.items()}


class Packer:
    """Packs the commands of one client.

    With `slots` a second key is declared, which never exists. A cluster then refuses every command on a name whose slot
    is on its way to another server, before it has begun: half of its keys may be here and half there. `alone` declares
    the record twice instead, for commands that may be decided from it alone wherever it is.
    """

    def __init__(self, prefix: str, client: str, memory_ms: int, *, slots: bool = False) -> None:
        self.prefix = prefix
        self.channel = f"{prefix}:wake:{client}"
        fixed = bulk(self.channel) + bulk(str(memory_ms))
        count = 2 if slots else 1
        heads = {kind: script.head(count) for kind, script in SCRIPTS.items()}

        # Most clients use few names, over and over.
        @lru_cache(maxsize=512)
        def head(kind: type, name: str, alone: bool) -> bytes:
            key = record_key(prefix, name)
            second = bulk(key if alone else f"{key}:-") if slots else b""
            return heads[kind] + bulk(key) + second + fixed

        # A lock is taken and given back over and over: of all that is sent only the token is new.
        @lru_cache(maxsize=512)
        def taking(name: str, holder: str, ttl_ms: int, wait: bytes, alone: bool) -> tuple[bytes, bytes]:
            return head(Acquire, name, alone), b"\r\n" + bulk(holder) + bulk(str(ttl_ms)) + wait

        # A limit asks about the same keys over and over, and in the same words.
        @lru_cache(maxsize=1024)
        def asking(hit: Hit) -> bytes:
            return self._of_tally(hit, whole=False)

        self._asking = asking
        self._fixed = (self.channel, str(memory_ms))
        self._head = head
        self._taking = taking
        self._heads = heads
        self._keys = count

    def pack(self, command: Command, *, whole: bool = False, pops: bool = False, alone: bool = False) -> bytes:
        """The bytes of a command; `whole` for a server that does not know the script.

        `pops` for a waiter that will pop its bell instead of listening for it.
        """
        kind = type(command)
        if kind is Acquire:
            ask: Any = command
            name, token, holder, ttl_ms, waits = ask
            begin, rest = self._taking(name, holder, ttl_ms, _POPS if pops else _RUNG if waits else _NEVER, alone)
            text = b"%b$%d\r\n%b%b" % (begin, len(token), token.encode(), rest)
        elif kind in TALLIES:
            return self._asking(command) if kind is Hit and not whole else self._of_tally(command, whole=whole)
        elif kind in ENTRIES:
            return ENTRIES[kind].pack_entry(self.prefix, self._fixed, command, slots=self._keys > 1, whole=whole)
        else:
            text = self._head(kind, command.name, alone) + _REST[kind](command)  # type: ignore[arg-type]
            if kind in ASKING:
                text += _POPS if pops else _RUNG if command.wait else _NEVER  # type: ignore[union-attr]
        if whole:
            text = SCRIPTS[kind].head(self._keys, whole=True) + text.removeprefix(self._heads[kind])
        return text

    def _of_tally(self, command: Any, *, whole: bool) -> bytes:
        key = f"{record_key(self.prefix, command.name)}:{command.shelf}"
        return TALLIES[type(command)].pack(tallies.ARGUMENTS[type(command)](command), key, whole=whole)

    def pack_pop(self, ask: Asking, seconds: float) -> bytes:
        """Block until this waiter's bell is rung, or that long."""
        base = record_key(self.prefix, ask.name) + (f":{ask.kind}" if isinstance(ask, Borrow) else "")
        return packed("BLPOP", f"{base}:k:{ask.token}", f"{seconds:.3f}")


def more_s(command: Command) -> float:
    """How much longer than others a command may take: one that brings or takes away many items takes its time."""
    return _CHANGE_S + len(command.items) / _ITEMS_PER_S if type(command) is ChangePool else 0.0
