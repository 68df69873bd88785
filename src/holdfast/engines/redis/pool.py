"""The commands of pools, semaphores and read-write locks on Redis: scripts, arguments and replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.commands import (
    Answer,
    Borrow,
    BreakItem,
    Busy,
    ChangePool,
    CoolItem,
    Done,
    Extend,
    GetPoolStats,
    Granted,
    ItemSnapshot,
    ItemsStillLent,
    LeaseParty,
    PoolChanged,
    PoolHeartbeat,
    PoolSnapshot,
    Released,
    Renewed,
    Return,
    UndoBorrow,
    UnknownItems,
)
from holdfast.engines.redis.resp import all_bulk, bulk, repeated
from holdfast.engines.redis.script import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.commands import Command

# A change of many items takes its time, also on a server that is busy with other work.
_CHANGE_S, _ITEMS_PER_S = 10.0, 10_000


def _borrow(command: Borrow) -> bytes:
    """Pack a borrow up to the argument about waiting, which the packer adds."""
    head = repeated(command.kind) + bulk(command.token) + repeated(command.holder) + repeated(command.ttl_ms)
    share = repeated(command.tag) + repeated(command.share_ppm)
    return head + repeated(command.cooldown_ms) + share + repeated(command.permits)


def _change(command: ChangePool) -> bytes:
    items = "\x00".join(command.items)
    return repeated(command.kind) + all_bulk(
        command.operation, items, int(command.leave), command.seed, command.permits
    )


def _kind_and(*fields: str) -> Callable[[Any], bytes]:
    """Return a packer of the command's kind and then these fields of it."""
    return lambda command: repeated(command.kind) + all_bulk(*(getattr(command, field) for field in fields))


def _return(command: Return) -> bytes:
    rest = all_bulk(command.item, command.token, command.cooldown_ms, int(command.tombstone))
    return repeated(command.kind) + rest


SCRIPTS: dict[type, Script] = {
    Borrow: Script("pool/borrow", _borrow, count=9),
    Extend: Script("pool/extend", _kind_and("item", "token", "ttl_ms"), count=4),
    Return: Script("pool/return", _return, count=5),
    UndoBorrow: Script("pool/undo", _kind_and("token"), count=2),
    BreakItem: Script("pool/break_item", _kind_and("item", "fence", "reason"), count=4),
    CoolItem: Script("pool/cool_item", _kind_and("item", "cooldown_ms"), count=3),
    ChangePool: Script("pool/change", _change, count=6),
    PoolHeartbeat: Script("pool/heartbeat", _kind_and(), count=1),
    GetPoolStats: Script("pool/stats", _kind_and("limit"), count=2),
}


def extra_s(command: Command) -> float:
    """Return how much longer than others the command may take: only a change of many items takes longer."""
    return _CHANGE_S + len(command.items) / _ITEMS_PER_S if type(command) is ChangePool else 0.0


def _snapshot(reply: list[Any]) -> PoolSnapshot:
    _, fence, permits, size, lent, cooling, free, waiting, trouble, items, waiters = reply
    seen = tuple(
        ItemSnapshot(items[at], items[at + 1], bool(items[at + 2]), int(items[at + 3]), *items[at + 4 : at + 8])
        for at in range(0, len(items), 8)
    )
    waiting_line = tuple(
        LeaseParty(waiters[at + 1], waiters[at], 0, waiters[at + 2], 0) for at in range(0, len(waiters), 3)
    )
    return PoolSnapshot(int(fence), permits, size, lent, cooling, free, waiting, seen, waiting_line, trouble)


DONE: dict[type, Answer] = {
    Extend: Renewed(),
    Return: Released(),
    UndoBorrow: Done(),
    BreakItem: Released(),
    CoolItem: Done(),
}
REPLIES: dict[str, Callable[[list[Any]], Answer]] = {
    "lent": lambda reply: Granted(int(reply[1]), reply[2], reply[3]),
    "none free": lambda reply: Busy(
        "", int(reply[2]), reply[3], None if reply[4] < 0 else reply[4], reply[1], *reply[5:]
    ),
    "changed": lambda reply: PoolChanged(reply[1], reply[2], tuple(sorted(reply[3:]))),
    "lent items": lambda reply: ItemsStillLent(tuple(sorted(reply[1:]))),
    "unknown items": lambda reply: UnknownItems(tuple(reply[1:])),
    "pool": _snapshot,
}
