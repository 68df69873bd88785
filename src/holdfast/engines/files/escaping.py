"""From a name to the one component of a path that stands for it.

A name is any text and never a path. Lower-case letters, digits and a few signs stay; everything else is written as
its bytes in hexadecimal, capitals included, so that no two names meet on a filesystem that does not tell them apart.
Nothing that begins with a dot, and nothing with a slash, can come of it.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_LONGEST = 120
_KEPT = 80
_DOT = ord(".")


@lru_cache(maxsize=1024)
def folder_of(name: str) -> str:
    """A safe component, another one for every name."""
    text = name.encode()
    parts = [chr(byte) if byte in _PLAIN and (at or byte != _DOT) else f"={byte:02X}" for at, byte in enumerate(text)]
    folder = "".join(parts)
    if len(folder) <= _LONGEST:
        return folder
    # "=h" cannot come of a short name: after its signs of equality there are capitals and digits only.
    return f"{folder[:_KEPT]}=h{blake2b(text, digest_size=16).hexdigest()}"
