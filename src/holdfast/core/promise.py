"""The promise of an engine: looked at when somebody asks, required when somebody connects, and watched meanwhile.

A look costs a round trip or two, so it is never part of getting a lease. While leases are held or waited for, the
keeper looks again at a slow pace, and tells when the promise has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import NS
from holdfast.core.step import run
from holdfast.errors import Closed, PromiseNotKept, ReplyLost, Unavailable
from holdfast.observer import Observer, emit, log
from holdfast.rules.promise import difference, missing

if TYPE_CHECKING:
    from holdfast.core.client import Client
    from holdfast.engines import Promise, Transport

LOOK_EVERY_NS = 20 * NS
# A keeper that comes by this late has had nothing to watch for.
_GAP_NS = 5 * NS


async def promise(client: Client) -> Promise:
    """What may be relied on, from a look at the engine now."""
    if client.closed:
        raise Closed
    try:
        found = await client.transport.promise()
    except ReplyLost as error:
        raise Unavailable(error.engine, error.reason, error.detail) from error
    client.keeper.promise_watch.last = found
    return found


async def require(client: Client, wanted: tuple[str, ...]) -> None:
    """`PromiseNotKept` unless the engine holds all of it."""
    if not wanted:
        return
    found = await promise(client)
    lacking = missing(found, wanted)
    if lacking:
        raise PromiseNotKept(client.url, lacking, found)


class PromiseWatch:
    """What the keeper watches beside its leases: that the engine is the same, and promises the same."""

    def __init__(self, transport: Transport, observer: Observer | None) -> None:
        self._transport = transport
        self._observer = observer
        self.last: Promise | None = None
        self._watched_ns = self._look_ns = 0

    def watch(self, now_ns: int, until_ns: int) -> None:
        """Look whether anything has happened to the engine."""
        try:
            run(self._transport.ensure_connected(until_ns))
            self._look(now_ns, until_ns)
        except Unavailable:
            pass  # whatever is due meets the same trouble, and tells it
        except Exception:
            log.exception("the engine could not be looked at")  # leases are renewed all the same

    def tell_news(self) -> bool:
        """Tell what the engine has noticed by itself; true if every lease had better be renewed now."""
        events = self._transport.events()
        for kind, seconds, detail in events:
            emit(self._observer, kind, "", None, seconds, detail)
        return bool(events)

    def _look(self, now_ns: int, until_ns: int) -> None:
        if now_ns - self._watched_ns > _GAP_NS:
            self._look_ns = now_ns + LOOK_EVERY_NS
        self._watched_ns = now_ns
        if now_ns < self._look_ns:
            return
        self._look_ns = now_ns + LOOK_EVERY_NS
        found = run(self._transport.promise(until_ns))
        before, self.last = self.last, found
        changed = "" if before is None else difference(before, found)
        if changed:
            emit(self._observer, "promise_changed", "", detail=changed)
