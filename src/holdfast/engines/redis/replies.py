"""From the replies of scripts to answers: one table, of all features.

A server may send any reply: it may be no Redis at all, and another program may have written values under our keys that
a script passes on. A reply that is no answer to its command becomes `Unavailable`.
"""

from __future__ import annotations

import types
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from holdfast.commands import Acquire, Answer, BeginOnce, ClaimEntry, Granted
from holdfast.commands.queue import Delivery, Join, StoredMessage
from holdfast.engines.redis import counters, lease, pool, queue, registry
from holdfast.errors import UNKNOWN, Unavailable, UnavailableReason
from holdfast.rules.lease_record import FENCE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

_GRANTS = frozenset((Acquire, ClaimEntry, BeginOnce, Join))
_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, OverflowError)


def answered(kind: type, reply: Any) -> Answer:
    """Return the answer that a script's reply to this kind of command stands for."""
    try:
        if type(reply) is str and kind in _GRANTS:
            return Granted(_fence(int(reply)))
        if type(reply) is int:
            return _DONE[kind]
        answer = _replies_to(kind)[reply[0]](reply)
        _check(answer)
    except _UNREADABLE as error:
        # The server may have applied the command. A second copy would get the same reply. The error is no
        # `UnreadableRecord`: the server may be no Redis at all, so it says nothing about the record of one name.
        detail = f"the reply to {kind.__name__} is no answer to it: {type(error).__name__}"
        raise Unavailable("redis", UnavailableReason.CORRUPT, detail, UNKNOWN) from error
    return answer


def time_of(reply: Any) -> int | None:
    """Return the server's time in the reply to a renewal, in microseconds; `None` for an error reply."""
    if type(reply) is list:
        reply = reply[3] if len(reply) > 3 else None
    return reply if type(reply) is int else None


def _fence(fence: int) -> int:
    if not 0 < fence <= FENCE_MAX:
        raise ValueError(fence)
    return fence


@cache
def _replies_to(kind: type) -> dict[str, Callable[[list[Any]], Answer]]:
    """Return the readers of the replies that this command's script can send.

    A reply's first word is in the text of a script that can send it.
    """
    from holdfast.engines.redis.scripts import SCRIPTS  # noqa: PLC0415 - it imports this package's features too

    return {first: read for first, read in _REPLIES.items() if f"'{first}'" in SCRIPTS[kind].text}


def _check(answer: Any) -> None:
    """Raise `TypeError` if a field of the answer has another type than its class declares."""
    kind: Any = type(answer)
    checks = _field_checks(kind)
    if (*map(type, answer),) == checks:  # most answers have fields of plain types
        return
    for value, check in zip(answer, checks, strict=True):
        if check is not type(value) and (type(check) is type or not check(value)):
            raise TypeError(kind.__name__)


@cache
def _field_checks(kind: Any) -> tuple[Any, ...]:
    """Return for each field of the answer its type, or a function that checks a value of it."""
    return tuple(map(_check_of, get_type_hints(kind, localns={"StoredMessage": StoredMessage}).values()))


def _check_of(hint: Any) -> Any:
    if hint in (str, int, bool, bytes) or hint in _READ_SAFELY:
        return hint
    if isinstance(hint, types.UnionType):  # X | None
        check = _check_of(get_args(hint)[0])
        return lambda value: value is None or _fits(value, check)
    if get_origin(hint) is tuple:
        of, *rest = get_args(hint)
        if rest != [...]:
            checks = [_check_of(each) for each in (of, *rest)]
            return lambda value: len(value) == len(checks) and all(map(_fits, value, checks))
        check = _check_of(of)
        if isinstance(check, type):
            return lambda value: {*map(type, value)} <= {check}
        return lambda value: all(_fits(each, check) for each in value)
    return _fits_class


def _fits(value: Any, check: Any) -> bool:
    return type(value) is check if isinstance(check, type) else bool(check(value))


def _fits_class(value: Any) -> bool:
    _check(value)
    return True


# Made of values that were checked when they were read: the check of every message would cost time.
_READ_SAFELY = (Delivery, StoredMessage)
_DONE: dict[type, Answer] = {**lease.DONE, **pool.DONE, **registry.DONE, **counters.DONE, **queue.DONE}
_REPLIES: dict[str, Callable[[list[Any]], Answer]] = {
    **lease.REPLIES,
    **pool.REPLIES,
    **registry.REPLIES,
    **counters.REPLIES,
    **queue.REPLIES,
}
