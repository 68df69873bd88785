"""Bodies and headers: what people send, as the bytes and texts that engines keep."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import InvalidConfig
from holdfast.names import is_unicode

if TYPE_CHECKING:
    from holdfast.commands.queue import StoredMessage

BODY_MAX_BYTES = 1 << 20
HEADERS_MAX_BYTES = 8192


class Codec(Protocol):
    """How a body becomes bytes, and bytes a body. What `decode` raises makes the message a dead letter."""

    def encode(self, body: Any) -> bytes:
        """The bytes of a body."""

    def decode(self, data: bytes) -> Any:
        """The body of some bytes."""


class _Json:
    # Made once: `dumps` with settings of its own would make an encoder for each message.
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
    """The bytes of a body, or `InvalidConfig` with what is wrong with it."""
    try:
        data = codec.encode(body)
    except Exception as error:
        raise InvalidConfig("body", body, f"the queue's codec cannot encode it: {error}") from error
    if not isinstance(data, bytes):
        raise InvalidConfig("codec", codec, f"it must encode to bytes, not {type(data).__name__}")
    if len(data) > BODY_MAX_BYTES:
        rule = f"a body may have at most {BODY_MAX_BYTES} bytes, this one has {len(data)}: send where to find it"
        raise InvalidConfig("body", body, rule)
    return data


def shown_body(codec: Codec, message: StoredMessage) -> Any:
    """The body for people; its bytes where it cannot be decoded."""
    try:
        return codec.decode(message.body)
    except Exception:
        return message.body


def packed_headers(headers: dict[str, str] | None) -> str:
    if headers is None:
        return ""
    texts = isinstance(headers, dict) and all(
        isinstance(each, str) and is_unicode(each) for pair in headers.items() for each in pair
    )
    packed = json.dumps(headers, separators=(",", ":"), ensure_ascii=False) if texts else ""
    if not texts or len(packed.encode()) > HEADERS_MAX_BYTES:
        rule = f"it must be a dictionary of texts, of at most {HEADERS_MAX_BYTES} bytes as JSON"
        raise InvalidConfig("headers", headers, rule)
    return packed if headers else ""


def unpacked_headers(packed: str) -> dict[str, str]:
    """What was sent. `ValueError` or `TypeError` if somebody else has written it, and it is none."""
    return dict(json.loads(packed)) if packed else {}


def shown_headers(packed: str) -> dict[str, str]:
    """The headers for people; their text, under a name that says so, where it cannot be read."""
    try:
        return unpacked_headers(packed)
    except (ValueError, TypeError):
        return {"unreadable": packed}


def checked_codec(codec: str | Codec) -> Codec:
    if isinstance(codec, str):
        if codec not in _CODECS:
            raise InvalidConfig("codec", codec, f"it must be one of {', '.join(sorted(_CODECS))}, or have both words")
        return _CODECS[codec]
    if not callable(getattr(codec, "encode", None)) or not callable(getattr(codec, "decode", None)):
        raise InvalidConfig("codec", codec, "it must have `encode(body)` and `decode(data)`")
    return codec
