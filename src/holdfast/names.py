"""Names, tokens and holders.

A name is any text up to a limit; it is never a path. A token is random and new for every attempt to acquire. A `Holder`
is for people to read; the library never decides by it.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import InvalidConfig, InvalidName
from holdfast.interrupts import raise_if_of_signal
from holdfast.text import DEPTH_MAX, is_deep, size_of

NAME_MAX_BYTES = 512
LABEL_MAX = 200
TEXT = "pass a text such as 'orders/42'"
INFO_MAX_BYTES = 4096


def checked_name(value: object, what: str = "a name") -> str:
    """Return the name if it is valid; else raise `InvalidName` with the broken rule. `what`: how the error calls it."""
    if type(value) is str and value.isascii() and "\x00" not in value and 0 < len(value) <= NAME_MAX_BYTES:
        return value
    if not isinstance(value, str):
        raise InvalidName(value, f"{what} must be text, not {type(value).__name__}: {TEXT}")
    if not value:
        raise InvalidName(value, f"{what} must not be empty: {TEXT}")
    if "\x00" in value:
        raise InvalidName(value, f"{what} must not contain a NUL character")

    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidName(value, f"{what} must be valid Unicode, without unpaired surrogates") from None
    if size > NAME_MAX_BYTES:
        rule = f"{what} may have at most {NAME_MAX_BYTES} bytes in UTF-8, this one has {size}: use a hash of it"
        raise InvalidName(value, rule)

    return value


def name_of(whole: str, key: object) -> str:
    """Join the name of a rate limit, budget, guard or queue with one of its keys: `logins/ann`. Pairs never collide."""
    if not isinstance(key, str):
        raise InvalidName(key, f"a key must be text, not {type(key).__name__}: {TEXT}")
    if not key:
        raise InvalidName(key, f"a key must not be empty: {TEXT}")
    if "%" in whole or "/" in whole:
        whole = whole.replace("%", "%25").replace("/", "%2F")
    return checked_name(f"{whole}/{key}")


def escaped_hash_tag(name: str) -> str:
    """Escape a name for the hash tag `{...}` of a Redis key, from which Redis Cluster computes the slot."""
    return name.replace("%", "%25").replace("}", "%7D") if "}" in name or "%" in name else name


def readable(name: str) -> str:
    """Return a name for people to read. The name of a registry entry contains a NUL and a character for its kind."""
    if "\0" not in name:
        return name
    registry, _, entry = name.partition("\0")
    return f"{registry}/{entry[1:]}".replace("\0", "/")


def is_unicode(text: str) -> bool:
    """Return whether every engine can store this text; unpaired surrogates cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def new_token() -> str:
    """Return sixteen random bytes as text: two attempts never share a token, on any machine.

    Each token comes straight from the operating system, never from a buffer: two unnoticed copies of a process (a fork
    in C, a machine restored twice) would share the buffer, hold under one token, and no engine could tell them apart.
    """
    return os.urandom(16).hex()


class Holder(NamedTuple):
    """The process that holds a lease: host, pid, start of the process, label, and free info. For people to read."""

    host: str
    pid: int
    start: int
    label: str = ""
    info: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def __str__(self) -> str:
        if not self.host:
            return self.label  # the successor of a hand-off, which has not claimed the entry yet
        return f"{self.host}:{self.pid}" + (f" ({self.label})" if self.label else "")

    def packed(self) -> str:
        """Return the holder as the text that engines store."""
        import json  # noqa: PLC0415 - once per client

        return json.dumps(self._asdict(), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def unpacked(cls, text: str) -> Holder:
        """Read a packed holder. If another version wrote the text, return the text itself as the host."""
        import json  # noqa: PLC0415 - only for people

        try:
            fields = json.loads(text)
            holder = cls(*(fields[name] for name in cls._fields))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise_if_of_signal(error)
            return cls(host=text[:80], pid=0, start=0)
        kinds = (isinstance(value, kind) for value, kind in zip(holder, (str, int, int, str, dict), strict=True))
        return holder if all(kinds) and not is_deep(holder.info) else cls(host=text[:80], pid=0, start=0)


@lru_cache(maxsize=64)
def holder_shown(packed: str) -> str:
    """Return a packed holder as text for people. Cached, because a waiter sees the same few holders again and again."""
    return str(Holder.unpacked(packed))


def this_process(label: str = "", info: dict[str, Any] | None = None) -> Holder:
    """Return the `Holder` of this process. The default label is the name or IP address of its pod, if any."""
    if label == "":
        label = (os.environ.get("POD_NAME") or os.environ.get("POD_IP") or "")[:LABEL_MAX]
    if not isinstance(label, str) or len(label) > LABEL_MAX or not is_unicode(label):
        raise InvalidConfig(
            "label", label, f"it must be text of at most {LABEL_MAX} characters, without unpaired surrogates"
        )
    import json  # noqa: PLC0415 - once per client

    try:
        size = len(json.dumps(info, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise_if_of_signal(error)
        raise InvalidConfig("info", size_of(info), "it must be a dictionary that JSON can encode") from None
    if size > INFO_MAX_BYTES or not isinstance(info, dict | None) or is_deep(info):
        rule = (
            f"it must be a dictionary of at most {INFO_MAX_BYTES} bytes as JSON, nested at most {DEPTH_MAX} levels deep"
        )
        raise InvalidConfig("info", size_of(info), rule)

    pid = os.getpid()
    return Holder(_host(), pid, _process_start(pid), label, dict(info or {}))


@cache
def _host() -> str:
    return os.uname().nodename


@cache
def _process_start(pid: int) -> int:
    """Return when the process began, in clock ticks since boot: a reused pid has another start."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, IndexError, ValueError) as error:
        raise_if_of_signal(error)
        return 0
