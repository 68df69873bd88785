"""Bodies and headers of messages: from Python objects to the bytes and texts that engines store, and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import InvalidConfig
from holdfast.interrupts import raise_if_of_signal
from holdfast.names import is_unicode
from holdfast.text import is_deep, size_of

if TYPE_CHECKING:
    from holdfast.commands.queue import StoredMessage

BODY_MAX_BYTES = 1 << 20
HEADERS_MAX_BYTES = 8192


class Codec(Protocol):
    """Converts bodies to bytes and back. If `decode` raises, the message becomes a dead letter."""

    def encode(self, body: Any) -> bytes:
        """Return the bytes of a body."""

    def decode(self, data: bytes) -> Any:
        """Return the body of these bytes."""


class _Json:
    # One encoder for all messages: `json.dumps` with options would create one for each.
    _encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
    _decode = json.JSONDecoder().decode

    def encode(self, body: Any) -> bytes:
        return self._encode(body).encode()

    def decode(self, data: bytes) -> Any:
        return self._decode(data.decode())


class _Bytes:
    def encode(self, body: Any) -> bytes:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(f"a body of this queue must be bytes, not {type(body).__name__}")
        return bytes(body)

    def decode(self, data: bytes) -> bytes:
        return data


_CODECS: dict[str, Codec] = {"json": _Json(), "bytes": _Bytes()}


def encoded(codec: Codec, body: Any) -> bytes:
    """Return the bytes of a body; raise `InvalidConfig` if the codec cannot encode it or it is too large."""
    why: str | None = None
    try:
        data = codec.encode(body)
    except Exception as error:
        raise_if_of_signal(error)
        why = codec_error(codec, error)
    # Raise outside the `except` block: the codec's error, which may contain the body, must not become the context.
    if why is not None:
        raise InvalidConfig(
            "body", size_of(body), f"the queue's codec cannot encode it ({why}): pass another body or codec"
        )
    if not isinstance(data, bytes):
        raise InvalidConfig("codec", codec, f"it must encode to bytes, not {type(data).__name__}")
    if len(data) > BODY_MAX_BYTES:
        rule = (
            f"message body is {len(data):,} bytes; the maximum is {BODY_MAX_BYTES:,}. Store it elsewhere and publish a"
            " reference"
        )
        raise InvalidConfig("body", size_of(body), rule)
    return data


def codec_error(codec: Codec, error: Exception) -> str:
    """Return why a codec failed, without the body: of an error of the program's codec only the type."""
    return str(error) if any(codec is own for own in _CODECS.values()) else type(error).__name__


def shown_body(codec: Codec, message: StoredMessage) -> Any:
    """Return the body for people to read; its bytes if the codec cannot decode it, or if it is nested too deep."""
    try:
        body = codec.decode(message.body)
    except Exception as error:
        raise_if_of_signal(error)
        return message.body
    return message.body if is_deep(body) else body


def packed_headers(headers: dict[str, str] | None) -> str:
    """Return the headers as the engine stores them; raise `InvalidConfig` unless they are a dictionary of texts."""
    if headers is None:
        return ""
    texts = isinstance(headers, dict) and all(
        isinstance(each, str) and is_unicode(each) for pair in headers.items() for each in pair
    )
    packed = json.dumps(headers, separators=(",", ":"), ensure_ascii=False) if texts else ""
    if not texts or len(packed.encode()) > HEADERS_MAX_BYTES:
        rule = f"it must be a dictionary of texts, of at most {HEADERS_MAX_BYTES} bytes as JSON"
        raise InvalidConfig("headers", size_of(headers), rule)
    return packed if headers else ""


def unpacked_headers(packed: str) -> dict[str, str]:
    """Return the published headers. Raise `ValueError` or `TypeError` if another program has stored invalid JSON."""
    if not packed:
        return {}
    try:
        headers = dict(json.loads(packed))
    except RecursionError:
        raise ValueError("the headers are nested too deep") from None
    if not all(isinstance(text, str) for pair in headers.items() for text in pair):
        raise TypeError("the headers must be texts")
    return headers


def shown_headers(packed: str) -> dict[str, str]:
    """Return the headers for people to read; if they cannot be parsed, their text under the name `unreadable`."""
    try:
        return unpacked_headers(packed)
    except (ValueError, TypeError) as error:
        raise_if_of_signal(error)
        return {"unreadable": packed}


def checked_codec(codec: str | Codec) -> Codec:
    """Return the codec with this name, or the given object; raise `InvalidConfig` if the object is not a codec."""
    if isinstance(codec, str):
        if codec not in _CODECS:
            names = ", ".join(sorted(_CODECS))
            raise InvalidConfig("codec", codec, f"it must be one of {names}, or an object with `encode` and `decode`")
        return _CODECS[codec]
    if not callable(getattr(codec, "encode", None)) or not callable(getattr(codec, "decode", None)):
        raise InvalidConfig("codec", codec, "it must have `encode(body)` and `decode(data)`")
    return codec
