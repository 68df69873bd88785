"""The promise of an engine: `promise()` looks it up, `connect(require=...)` requires it, and the keeper watches it.

A lookup costs a round trip or two, so it is never part of acquiring a lease. While the client has holders or waiters,
the keeper repeats the lookup every 20 seconds, and emits an event if the promise has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import NS
from holdfast.core.resend import raise_public
from holdfast.core.step import run
from holdfast.errors import PromiseNotKept, Unavailable
from holdfast.rules.promise import difference, missing

if TYPE_CHECKING:
    from holdfast.core.client import Client
    from holdfast.core.keeper.reporter import Reporter
    from holdfast.engines import Promise, Transport

CHECK_EVERY_NS = 20 * NS
# After a gap longer than this, the keeper had no lease to watch for, and starts a new period.
_GAP_NS = 5 * NS


async def promise(client: Client) -> Promise:
    """Look up the promise of the engine now, and return it."""
    client.refuse_if_closed()
    try:
        found = await client.transport.promise()
    except Unavailable as error:
        raise_public(error)
    client.keeper.promise_watch.last = found
    return found


async def require(client: Client, wanted: tuple[str, ...]) -> None:
    """Raise `PromiseNotKept` unless the engine promises everything in `wanted`."""
    if not wanted:
        return
    found = await promise(client)
    lacking = missing(found, wanted)
    if lacking:
        raise PromiseNotKept(client.url, lacking, found)


class PromiseWatch:
    """The keeper's watch on the engine: whether the same server answers, and with the same promise."""

    def __init__(self, transport: Transport, reporter: Reporter) -> None:
        self._transport = transport
        self._reporter = reporter
        self.last: Promise | None = None
        self._watched_ns = self._next_check_ns = 0

    def watch(self, now_ns: int, until_ns: int) -> None:
        """Check the connection and, every `CHECK_EVERY_NS`, the promise."""
        try:
            run(self._transport.ensure_connected(until_ns))
            self._check_promise(now_ns, until_ns)
        except Unavailable:
            pass  # the commands that are due get the same error, and report it
        except Exception as error:  # the keeper still renews leases
            self._reporter.log_error("holdfast: the promise of the engine could not be looked up", error)

    def report_events(self) -> bool:
        """Emit the events that the transport collected; return whether the keeper should renew every lease now."""
        events = self._transport.events()
        for kind, seconds, detail in events:
            self._reporter.emit(kind, "", None, seconds, detail)
        return bool(events)

    def _check_promise(self, now_ns: int, until_ns: int) -> None:
        """Look up the promise if the check is due, and emit an event if it has changed."""
        if now_ns - self._watched_ns > _GAP_NS:
            self._next_check_ns = now_ns + CHECK_EVERY_NS
        self._watched_ns = now_ns
        if now_ns < self._next_check_ns:
            return
        self._next_check_ns = now_ns + CHECK_EVERY_NS
        found = run(self._transport.promise(until_ns))
        before, self.last = self.last, found
        changed = "" if before is None else difference(before, found)
        if changed:
            self._reporter.emit("promise_changed", "", detail=changed)
