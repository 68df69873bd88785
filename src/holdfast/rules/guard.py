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
_AHEAD_US = 10 * 365 * 86_400 * 1_000_000
_YEAR_2026_US = 1_767_225_600_000_000  # the least "now": a host whose clock is behind 2026 uses this


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


def fence_max(now_us: int) -> int:
    """Return the largest fence that a guard accepts.

    A fence is the engine's time in microseconds, or a little more. A stamp from the far future would lock out all real
    holders until then.
    """
    return min(FENCE_MAX, max(now_us, _YEAR_2026_US) + _AHEAD_US)


def stamp_of(lease: Bearer, now_us: int) -> Stamp:
    """Return the stamp of a lease; raise `InvalidConfig`, before any I/O, if its fence or its token is invalid.

    `now_us`: the calendar of this host.
    """
    try:
        fence, token = lease.fence, lease.token
    except AttributeError:
        rule = "it must have a fence and a token, as a lease and a Stamp have"
        raise InvalidConfig("lease", lease, rule) from None
    if type(fence) is not int or not 0 < fence <= fence_max(now_us):
        rule = f"it must be a whole number from 1 to {fence_max(now_us)}: ten years from now, in microseconds"
        raise InvalidConfig("fence", fence, rule)
    if not isinstance(token, str) or not 0 < len(token) <= TOKEN_MAX or "\x00" in token or not is_unicode(token):
        raise InvalidConfig("token", token, f"it must be text of 1 to {TOKEN_MAX} characters, without NUL")
    return Stamp(fence, token)
