"""The law of guards: what a protected resource accepts.

A fence that is newer than the newest it has seen, or that very one again from the same token; nothing else. The token
matters because two servers that were split may have given one number twice.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from holdfast.errors import Fenced, InvalidConfig
from holdfast.names import is_unicode

FENCE_MAX = 2**53 - 1  # so that every resource, scripts in Lua included, can compare it exactly
TOKEN_MAX = 200


class Bearer(Protocol):
    """Whoever brings a fence and a token: a lease, an item, a term, a stamp."""

    @property
    def fence(self) -> int: ...

    @property
    def token(self) -> str: ...


class Stamp(NamedTuple):
    """What a resource remembers of the newest holder that came: how new it is, and whose. Itself a bearer of both."""

    fence: int
    token: str


UNSEEN = Stamp(0, "")


def accepts(newest: Stamp, stamp: Stamp) -> bool:
    """Whether a resource that has seen `newest` lets `stamp` write."""
    return stamp.fence > newest.fence or stamp == newest


def admitted(name: str, newest: Stamp, stamp: Stamp) -> Stamp:
    """What the resource has to remember from now on; `Fenced` if it must refuse."""
    if not accepts(newest, stamp):
        raise Fenced(name, stamp.fence, newest.fence)
    return stamp


def stamp_of(lease: Bearer) -> Stamp:
    """The stamp that a lease brings, or `InvalidConfig` with the rule it breaks: nothing was asked of the resource."""
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
