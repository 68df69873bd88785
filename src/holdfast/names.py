"""Names, tokens and owners: who and what a lease is about.

A name is any text up to a limit; it is never a path. A token is random and new for every attempt to acquire. An owner
is for people to read and never decides anything.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import InvalidConfig, InvalidName

NAME_MAX_BYTES = 512
LABEL_MAX = 200
INFO_MAX_BYTES = 4096


def checked_name(value: object, what: str = "a name") -> str:
    """The name itself, or `InvalidName` with the rule it breaks. `what` it is: a key keeps the same rules."""
    if type(value) is str and value.isascii() and "\x00" not in value and 0 < len(value) <= NAME_MAX_BYTES:
        return value
    if not isinstance(value, str):
        raise InvalidName(value, f"{what} must be text, not {type(value).__name__}")
    if not value:
        raise InvalidName(value, f"{what} must not be empty")
    if "\x00" in value:
        raise InvalidName(value, f"{what} must not contain a NUL character")

    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidName(value, f"{what} must be valid Unicode, without lone surrogates") from None
    if size > NAME_MAX_BYTES:
        raise InvalidName(value, f"{what} may have at most {NAME_MAX_BYTES} bytes in UTF-8, this one has {size}")

    return value


def name_of(whole: str, key: object) -> str:
    """The name of one key of something that has many: `logins/ann`. No two pairs share one."""
    if not isinstance(key, str):
        raise InvalidName(key, f"a key must be text, not {type(key).__name__}")
    if not key:
        raise InvalidName(key, "a key must not be empty")
    if "%" in whole or "/" in whole:
        whole = whole.replace("%", "%25").replace("/", "%2F")
    return checked_name(f"{whole}/{key}")


def between_braces(name: str) -> str:
    """A name as it stands in the keys of a server, between braces: what its slot is counted from."""
    return name.replace("%", "%25").replace("}", "%7D") if "}" in name or "%" in name else name


def readable(name: str) -> str:
    """A name as people read it: entries of directories have a NUL inside, and a letter for their kind."""
    if "\0" not in name:
        return name
    directory, _, entry = name.partition("\0")
    return f"{directory}/{entry[1:]}".replace("\0", "/")


def is_unicode(text: str) -> bool:
    """Whether every engine can keep this text; lone surrogates have no form outside this process."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def new_token() -> str:
    """Sixteen random bytes: two attempts never share one, on any machine.

    Drawn one by one. A supply in memory would be shared by processes that were copied unnoticed: a fork in C, a machine
    restored twice. Both would hold under one token, and nobody could tell them apart.
    """
    return os.urandom(16).hex()


class Holder(NamedTuple):
    """A readable identity: which process on which machine, since when, and what it says of itself."""

    host: str
    pid: int
    start: int
    label: str = ""
    info: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def __str__(self) -> str:
        if not self.host:
            return self.label  # somebody who is expected, and has not come
        return f"{self.host}:{self.pid}" + (f" ({self.label})" if self.label else "")

    def packed(self) -> str:
        """The form in which engines keep it."""
        import json  # noqa: PLC0415 - once per client

        return json.dumps(self._asdict(), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def unpacked(cls, text: str) -> Holder:
        """Read a packed owner; whatever another version wrote is shown, never trusted."""
        import json  # noqa: PLC0415 - only for people

        try:
            fields = json.loads(text)
            return cls(fields["host"], fields["pid"], fields["start"], fields["label"], fields["info"])
        except (ValueError, KeyError, TypeError):
            return cls(host=text[:80], pid=0, start=0)


@lru_cache(maxsize=64)
def holder_shown(packed: str) -> str:
    """A packed owner for people. Kept, because whoever contends meets the same few others again and again."""
    return str(Holder.unpacked(packed))


def this_process(label: str = "", info: dict[str, Any] | None = None) -> Holder:
    """The owner that this process is. Without a label it has that of its pod, if it is in one."""
    if label == "":
        label = (os.environ.get("POD_NAME") or os.environ.get("POD_IP") or "")[:LABEL_MAX]
    if not isinstance(label, str) or len(label) > LABEL_MAX or not is_unicode(label):
        raise InvalidConfig(
            "label", label, f"it must be text of at most {LABEL_MAX} characters, without lone surrogates"
        )
    import json  # noqa: PLC0415 - once per client

    try:
        size = len(json.dumps(info, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise InvalidConfig("info", info, "it must be a dictionary that JSON can carry") from None
    if size > INFO_MAX_BYTES or not isinstance(info, dict | None):
        raise InvalidConfig("info", info, f"it must be a dictionary of at most {INFO_MAX_BYTES} bytes as JSON")

    pid = os.getpid()
    return Holder(_host(), pid, _process_start(pid), label, dict(info or {}))


@cache
def _host() -> str:
    return os.uname().nodename


@cache
def _process_start(pid: int) -> int:
    """When the process began, in clock ticks since boot: a pid that was used again shows another one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0
