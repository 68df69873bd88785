"""From the replies of scripts to answers: one table, of all features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.commands import Answer, Granted
from holdfast.engines.redis import counters, lease, pool, queue, registry

if TYPE_CHECKING:
    from collections.abc import Callable


def answered(kind: type, reply: Any) -> Answer:
    """Return the answer that a script's reply to this kind of command stands for."""
    if type(reply) is str:
        return Granted(int(reply))
    if type(reply) is int:
        return _DONE[kind]
    return _REPLIES[reply[0]](reply)


def time_of(reply: Any) -> int | None:
    """Return the server's time in the reply to a renewal, in microseconds; `None` for an error reply."""
    if type(reply) is list:
        return int(reply[3])
    return reply if type(reply) is int else None


_DONE: dict[type, Answer] = {**lease.DONE, **pool.DONE, **registry.DONE, **counters.DONE, **queue.DONE}
_REPLIES: dict[str, Callable[[list[Any]], Answer]] = {
    **lease.REPLIES,
    **pool.REPLIES,
    **registry.REPLIES,
    **counters.REPLIES,
    **queue.REPLIES,
}
