"""See who holds what, and break a lease by force: for people and for tools."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.commands import Break, LeaseInfo, NotHeld, Released, Show
from holdfast.core.resend import send_safely
from holdfast.errors import InvalidConfig, NotFound
from holdfast.names import Holder, checked_name, is_unicode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.commands import Answer
    from holdfast.core.client import Client

    InThread = Callable[[Callable[[], Any]], Awaitable[Any]]

_REASON_MAX = 500
NAMES = 1000
NAMES_MAX = 100_000
# To find the held names, a scan reads at most `REMEMBERED_MAX` names, `_BATCH` at a time.
REMEMBERED_MAX = 100_000
_BATCH = 1000


class LeaseStatus(NamedTuple):
    """The holder and the waiters of a name, for people to read.

    `holder` is `None` if the name is free. `seconds`: how long the holder has held the lease. `remaining`: the seconds
    until the lease expires unless renewed. `waiters` are in order.
    """

    name: str
    fence: int
    holder: Holder | None
    seconds: float
    remaining: float
    waiters: tuple[Holder, ...]


async def lease_info(client: Client, name: str) -> LeaseInfo:
    """Return what the engine stores about a name."""
    answer = await client.send(Show(name))
    assert isinstance(answer, LeaseInfo)
    return answer


async def show(client: Client, name: str) -> LeaseStatus:
    """Return who holds the name and who waits for it."""
    name = checked_name(name)
    return _status(name, await lease_info(client, name))


def _status(name: str, info: LeaseInfo) -> LeaseStatus:
    waiters = tuple(Holder.unpacked(waiter.holder) for waiter in info.waiters)
    if info.holder is None:
        return LeaseStatus(name, info.fence, None, 0.0, 0.0, waiters)
    holder, since_s = Holder.unpacked(info.holder.holder), info.holder.since_ms / 1000
    return LeaseStatus(name, info.holder.fence, holder, since_s, info.holder.remaining_ms / 1000, waiters)


async def held(client: Client, prefix: str, limit: int, in_thread: InThread) -> list[LeaseStatus]:
    """Return at most `limit` names that begin with `prefix` and have a holder or waiters. Scans all such names."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= NAMES_MAX:
        raise InvalidConfig("limit", limit, f"it must be a whole number from 1 to {NAMES_MAX}")
    client.refuse_if_closed()
    found, _ = await scan(client, prefix, limit, in_thread)
    return [_status(name, info) for name, info in found]


async def scan(
    client: Client, prefix: str, limit: int, in_thread: InThread, *, every: bool = False
) -> tuple[list[tuple[str, LeaseInfo]], bool]:
    """Return names that begin with `prefix`, what the engine stores about each, and whether there may be more.

    `limit` counts names with a holder or waiters; with `every`, all names. The engine remembers free names, because of
    their fences. There may be many free names, and they must not hide a held one.
    """
    prefix = checked_name(prefix) if prefix else ""
    most = limit if every else max(limit, REMEMBERED_MAX)
    # The call blocks for as long as it takes to read the names: `in_thread` keeps the event loop free.
    names, more = await in_thread(partial(client.engine.names, prefix, most))
    found: list[tuple[str, LeaseInfo]] = []
    for start in range(0, len(names), _BATCH):
        part = names[start : start + _BATCH]
        pairs = zip(part, await lease_infos(client, part), strict=True)
        readable = ((name, info) for name, info in pairs if info is not None)
        found += [(name, info) for name, info in readable if every or info.holder is not None or info.waiters]
        if len(found) > limit:
            return found[:limit], True
    return found, more


async def lease_infos(client: Client, names: Sequence[str]) -> list[LeaseInfo | None]:
    """Return what the engine stores about many names; `None` for a name whose record cannot be read."""
    return await client.send_all([Show(name) for name in names])


async def break_lease(client: Client, name: str, reason: str, fence: int | None = None) -> None:
    """End the lease of a name by force; with `fence`, only that lease. Its holder reads `reason` in `LeaseLost`."""
    name = checked_name(name)
    if not isinstance(reason, str) or not 0 < len(reason) <= _REASON_MAX or not is_unicode(reason):
        rule = f"it must be text of 1 to {_REASON_MAX} characters without unpaired surrogates, for the holder to read"
        raise InvalidConfig("reason", reason, rule)
    info = await lease_info(client, name)
    if info.holder is None:
        raise NotFound(name, "lease to break")
    if fence is not None and info.holder.fence != fence:
        raise NotFound(name, f"lease with fence {fence} any more")
    if not await break_fence(client, name, info.holder.fence, reason):
        raise NotFound(name, f"lease with fence {info.holder.fence} any more")


async def break_fence(client: Client, name: str, fence: int, reason: str) -> bool:
    """End the lease with this fence by force; return false if there is no such lease.

    The command names the fence, so that a second copy cannot end the lease of the next holder.
    """
    answer = await send_safely(client, Break(name, fence, reason), _broken_before)
    return not isinstance(answer, NotHeld)


async def _broken_before(answer: Answer) -> Answer:
    """Interpret the answer to a second copy: if the fence is gone, the first copy has ended its lease."""
    return Released() if isinstance(answer, NotHeld) else answer
