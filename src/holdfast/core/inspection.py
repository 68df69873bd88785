"""Who holds what, and the way out by force: for people and for tools."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.clock import NS_PER_MS
from holdfast.commands import Break, LeaseInfo, NotHeld, Show
from holdfast.core.keeper.keeper import WIRE_NS
from holdfast.errors import Closed, InvalidConfig, NotFound, ReplyLost, Unavailable
from holdfast.names import Holder, checked_name, is_unicode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.core.client import Client

    Aside = Callable[[Callable[[], Any]], Awaitable[Any]]

_REASON_MAX = 500
_RETRY_NS = 50 * NS_PER_MS
NAMES = 1000
NAMES_MAX = 100_000
# So many names are looked through for one that is held, in steps of so many.
REMEMBERED_MAX = 100_000
_AT_ONCE = 1000


class LeaseStatus(NamedTuple):
    """A name as people see it: the holder, since when, for how much longer unless renewed, and who waits, in order."""

    name: str
    fence: int
    holder: Holder | None
    seconds: float
    remaining: float
    waiters: tuple[Holder, ...]


async def standing(client: Client, name: str) -> LeaseInfo:
    """The engine's own view."""
    answer = await client.send(Show(name))
    assert isinstance(answer, LeaseInfo)
    return answer


async def show(client: Client, name: str) -> LeaseStatus:
    """Who holds the name and who waits for it."""
    name = checked_name(name)
    return _holding(name, await standing(client, name))


def _holding(name: str, now: LeaseInfo) -> LeaseStatus:
    held = now.holder
    waiters = tuple(Holder.unpacked(seat.holder) for seat in now.waiters)
    if held is None:
        return LeaseStatus(name, now.fence, None, 0.0, 0.0, waiters)
    holder = Holder.unpacked(held.holder)
    return LeaseStatus(name, held.fence, holder, held.since_ms / 1000, held.remaining_ms / 1000, waiters)


async def held(client: Client, prefix: str, limit: int, aside: Aside) -> list[LeaseStatus]:
    """Every name that begins so and is held or waited for; at most so many. It scans."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= NAMES_MAX:
        raise InvalidConfig("limit", limit, f"it must be a whole number from 1 to {NAMES_MAX}")
    if client.closed:
        raise Closed
    found, _ = await scan(client, prefix, limit, aside)
    return [_holding(name, now) for name, now in found]


async def scan(
    client: Client, prefix: str, limit: int, aside: Aside, *, every: bool = False
) -> tuple[list[tuple[str, LeaseInfo]], bool]:
    """Names that begin so, with their standing, and whether there may be more of them.

    The limit counts names that are held or waited for, unless every one is wanted. A name that nobody holds is
    remembered for its fence, and there may be many of those: they must not hide one that is held.
    """
    prefix = checked_name(prefix) if prefix else ""
    most = limit if every else max(limit, REMEMBERED_MAX)
    # It blocks, for as long as it takes to look through them: `aside` has that done where it is in nobody's way.
    names, more = await aside(partial(client.engine.names, prefix, most))
    found: list[tuple[str, LeaseInfo]] = []
    for start in range(0, len(names), _AT_ONCE):
        part = names[start : start + _AT_ONCE]
        seen = zip(part, await survey(client, part), strict=True)
        found += [(name, now) for name, now in seen if every or now.holder is not None or now.waiters]
        if len(found) > limit:
            return found[:limit], True
    return found, more


async def survey(client: Client, names: Sequence[str]) -> list[LeaseInfo]:
    """The engine's own view of many names."""
    return await client.send_all([Show(name) for name in names])


async def break_lease(client: Client, name: str, reason: str, fence: int | None = None) -> None:
    """End the lease that there is now, or only that of the fence, by force. Its holder hears why in `LeaseLost`."""
    name = checked_name(name)
    if not isinstance(reason, str) or not 0 < len(reason) <= _REASON_MAX or not is_unicode(reason):
        rule = f"it must be text of 1 to {_REASON_MAX} characters without lone surrogates, for the holder to read"
        raise InvalidConfig("reason", reason, rule)
    now = await standing(client, name)
    if now.holder is None:
        raise NotFound(name, "lease to break")
    if fence is not None and now.holder.fence != fence:
        raise NotFound(name, f"lease with fence {fence} any more")
    if not await break_entry(client, name, now.holder.fence, reason):
        raise NotFound(name, f"lease with fence {now.holder.fence} any more")


async def break_entry(client: Client, name: str, fence: int, reason: str) -> bool:
    """End the lease of that fence; false if there was none. Asked for anew, the fence might be the next holder's."""
    command, until_ns = Break(name, fence, reason), client.clock.now_ns() + WIRE_NS
    sent_before = False
    while True:
        try:
            answer = await client.send(command)
        except Unavailable as error:
            sent_before = sent_before or isinstance(error.__cause__, ReplyLost)
            if not sent_before or client.clock.now_ns() >= until_ns:
                raise
            await client.transport.waker().wait(client.clock.now_ns() + _RETRY_NS)
            continue
        return sent_before or not isinstance(answer, NotHeld)
