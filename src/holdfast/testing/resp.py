"""RESP, the protocol of Redis and Valkey, as far as a proxy and a test need it: whole messages from a stream of bytes.

The parser drops no byte. A message keeps its original bytes, so that a proxy can forward it unchanged; the parser keeps
an incomplete message until the rest arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class ServerError(Exception):
    """An error reply. Inside a message it is a value like any other."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerError) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


@dataclass(frozen=True, slots=True)
class RespMessage:
    """One whole request or reply: its bytes, its decoded value, and whether it is a push message of RESP3."""

    raw: bytes
    value: Any
    push: bool = False


class RespParser:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[RespMessage]:
        """Add bytes; return the messages that they complete."""
        rest = self._rest + data
        start, found = 0, []
        while start < len(rest):
            try:
                value, end = _read(rest, start)
            except _NotWholeError:
                break
            found.append(RespMessage(rest[start:end], value, push=rest[start : start + 1] == b">"))
            start = end
        self._rest = rest[start:]
        return found


def pack(*words: str | bytes | float) -> bytes:
    """Return a command as the bytes that a client sends."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


class _NotWholeError(Exception):
    """More bytes are needed."""


def _read(data: bytes, start: int) -> tuple[Any, int]:
    kind = data[start : start + 1]
    line, end = _line(data, start)
    if kind in (b"+", b"-", b":", b"_", b"#", b",", b"("):
        return _scalar(kind, line), end
    if kind in (b"$", b"!", b"="):
        return _bulk(kind, int(line), data, end)
    if kind in (b"*", b"~", b">"):
        return (None, end) if int(line) < 0 else _several(data, end, int(line))
    if kind in (b"%", b"|"):
        flat, end = _several(data, end, 2 * int(line))
        return dict(zip(map(_hashable, flat[::2]), flat[1::2], strict=True)), end
    # An inline command, as typed into telnet.
    return (kind + line).split(), end


def _line(data: bytes, start: int) -> tuple[bytes, int]:
    end = data.find(b"\r\n", start)
    if end < 0:
        raise _NotWholeError
    return data[start + 1 : end], end + 2


def _scalar(kind: bytes, line: bytes) -> Any:
    if kind == b"-":
        return ServerError(line.decode(errors="replace"))
    if kind in (b":", b"("):
        return int(line)
    if kind == b"_":
        return None
    if kind == b"#":
        return line == b"t"
    return float(line) if kind == b"," else line


def _bulk(kind: bytes, size: int, data: bytes, start: int) -> tuple[Any, int]:
    if size < 0:
        return None, start
    if len(data) < start + size + 2:
        raise _NotWholeError
    text = data[start : start + size]
    return (ServerError(text.decode(errors="replace")) if kind == b"!" else text), start + size + 2


def _several(data: bytes, start: int, count: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(count):
        value, start = _read(data, start)
        found.append(value)
    return found, start


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, list | dict) else value
