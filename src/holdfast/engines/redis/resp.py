"""The server's protocol (RESP): how a command is written as bytes."""

from __future__ import annotations

from functools import lru_cache

Argument = str | bytes


def bulk(text: str) -> bytes:
    """Pack one argument."""
    data = text.encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def bulk_of(argument: Argument) -> bytes:
    """Pack one argument that may be bytes already."""
    data = argument.encode() if isinstance(argument, str) else argument
    return b"$%d\r\n%b\r\n" % (len(data), data)


@lru_cache(maxsize=64)
def repeated(value: str | int) -> bytes:
    """Pack an argument that is usually the same from one command to the next, such as a holder or a ttl; cache it."""
    return bulk(str(value))


def all_bulk(*values: str | int) -> bytes:
    """Pack several arguments."""
    return b"".join(bulk(str(value)) for value in values)


def packed(*arguments: str) -> bytes:
    """Pack a whole command."""
    return b"*%d\r\n" % len(arguments) + b"".join(map(bulk, arguments))
