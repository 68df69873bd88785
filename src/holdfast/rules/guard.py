"""The rule of guards: which fences a protected resource accepts.

A resource accepts a fence above the newest that it has seen, and the newest fence again from the same token; it refuses
all others. The token matters because two servers on both sides of a network split may have granted one fence twice.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from holdfast.errors import Fenced, InvalidConfig
from holdfast.names import is_unicode
from holdfast.rules.lease_record import FENCE_MAX

TOKEN_MAX = 200


class Bearer(Protocol):
    """An object with a fence and a token: a lease, an item, a term, a stamp."""

    @property
    def fence(self) -> int: ...

    @property
    def token(self) -> str: ...


class Stamp(NamedTuple):
    """The fence and the token of the newest holder, which a resource remembers."""

    fence: int
    token: str


UNSEEN = Stamp(0, "")


def accepts(newest: Stamp, stamp: Stamp) -> bool:
    """Return whether a resource that has seen `newest` accepts a write by `stamp`."""
    return stamp.fence > newest.fence or stamp == newest


def admitted(name: str, newest: Stamp, stamp: Stamp) -> Stamp:
    """Return the stamp that the resource must remember from now on; raise `Fenced` if it must refuse the write."""
    if not accepts(newest, stamp):
        raise Fenced(name, stamp.fence, newest.fence)
    return stamp


def stamp_of(lease: Bearer) -> Stamp:
    """Return the stamp of a lease; raise `InvalidConfig`, before any I/O, if its fence or its token is invalid."""
    try:
        fence, token = lease.fence, lease.token
    except AttributeError:
        rule = "it must have a fence and a token, as a lease and a Stamp have"
        raise InvalidConfig("lease", lease, rule) from None
    if type(fence) is not int or not 0 < fence <= FENCE_MAX:
        raise InvalidConfig("fence", fence, f"it must be a whole number between 1 and {FENCE_MAX}")
    if not isinstance(token, str) or not 0 < len(token) <= TOKEN_MAX or "\x00" in token or not is_unicode(token):
        raise InvalidConfig("token", token, f"it must be text of 1 to {TOKEN_MAX} characters, without NUL")
    return Stamp(fence, token)
