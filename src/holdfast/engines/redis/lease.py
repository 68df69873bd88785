"""The commands of leases on Redis: scripts, arguments and replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.commands import (
    Acquire,
    Answer,
    Break,
    Busy,
    Done,
    HeartbeatReceived,
    LeaseInfo,
    LeaseParty,
    NotHeld,
    Refused,
    Released,
    ReleaseLease,
    Renew,
    Renewed,
    Show,
    Undo,
    WaiterHeartbeat,
)
from holdfast.engines.redis.resp import bulk, repeated
from holdfast.engines.redis.script import Script

if TYPE_CHECKING:
    from collections.abc import Callable

_EMPTY = bulk("")


def release_arguments(command: ReleaseLease) -> bytes:
    """Pack a release: the token, and the rare options in one argument that is usually empty."""
    _, token, tombstone, to = command
    how = bulk(f"{int(tombstone)}{to}") if tombstone or to else _EMPTY
    return b"$%d\r\n%b\r\n%b" % (len(token), token.encode(), how)


def _no_arguments(_command: Any) -> bytes:
    return b""


SCRIPTS: dict[type, Script] = {
    Acquire: Script("lease/acquire", _no_arguments, count=4),  # the packer packs it by itself, in one step
    Renew: Script("lease/renew", lambda command: bulk(command.token) + repeated(command.ttl_ms), count=2),
    ReleaseLease: Script("lease/release", release_arguments, count=2),
    Undo: Script("lease/undo", lambda command: bulk(command.token), count=1),
    Break: Script("lease/break", lambda command: bulk(str(command.fence)) + bulk(command.reason), count=2),
    WaiterHeartbeat: Script("lease/heartbeat", _no_arguments, count=0),
    Show: Script("lease/show", _no_arguments, count=0),
}


def _info(reply: list[Any]) -> LeaseInfo:
    _, fence, offered, token, holder, held, since_ms, remaining_ms, *rest = reply
    holder = LeaseParty(holder, token, int(held), since_ms, remaining_ms) if token else None
    waiters = tuple(LeaseParty(rest[at + 1], rest[at], 0, rest[at + 2], 0) for at in range(0, len(rest), 3))
    return LeaseInfo(int(fence), holder, bool(offered), waiters)


# The answer to a command whose script replies with a bare number.
DONE: dict[type, Answer] = {Renew: Renewed(), ReleaseLease: Released(), Break: Released(), Undo: Done()}
REPLIES: dict[str, Callable[[list[Any]], Answer]] = {
    "busy": lambda reply: Busy(reply[1], int(reply[2]), reply[3], None if reply[4] < 0 else reply[4]),
    "refused": lambda reply: Refused(reply[1]),
    "not held": lambda reply: NotHeld(reply[1], reply[2]),
    "heartbeat": lambda reply: HeartbeatReceived(reply[1], reply[2], reply[3], near=reply[4] == 1),
    "lease": _info,
}
