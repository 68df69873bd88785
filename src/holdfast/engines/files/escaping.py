"""From a name to the one path component that stands for it.

A name is any text and never a path. Lower-case letters, digits and a few signs stay; `folder_of` writes every other
byte in hexadecimal, capital letters included, so that two names never collide on a filesystem that ignores case. No
result begins with a dot or contains a slash.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from urllib.parse import unquote_to_bytes

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_LONGEST = 120
_KEPT = 80
_DOT = ord(".")


@lru_cache(maxsize=1024)
def folder_of(name: str) -> str:
    """Return a safe path component, a different one for every name."""
    text = name.encode()
    parts = [chr(byte) if byte in _PLAIN and (at or byte != _DOT) else f"={byte:02X}" for at, byte in enumerate(text)]
    folder = "".join(parts)
    if len(folder) <= _LONGEST:
        return folder
    # "=h" cannot come from a short name: its equals signs are followed by digits and capital letters only.
    return f"{folder[:_KEPT]}=h{blake2b(text, digest_size=16).hexdigest()}"


def name_of(folder: str) -> str:
    """Return the name that leads to this folder; empty if holdfast did not make it, or if it has only a hash."""
    try:
        name = unquote_to_bytes(folder.replace("=", "%")).decode()
    except ValueError:
        return ""
    return name if folder_of(name) == folder else ""
