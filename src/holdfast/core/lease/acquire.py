"""Acquire a lease: send the request, wait in line, confirm with the replicas.

If the engine may have applied a command, the client sends the command again with the same token. If an error or an
interrupt ends an acquire before a caller has the lease, the keeper sends an undo. The state changes after the answer,
never before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from holdfast.clock import NEVER_NS, NS, NS_PER_MS
from holdfast.commands import Answer, Busy, DoneMarker, Granted, Refused
from holdfast.core.lease.state import HELD, LeaseCore
from holdfast.core.resend import PATIENT, WIRE_NS, reply_lost, resend, send_confirmed
from holdfast.core.step import Ready
from holdfast.errors import (
    CANDIDATE,
    MOVING,
    PASSING,
    Closed,
    Deadlock,
    HoldfastError,
    NotAcquired,
    Unavailable,
    UnavailableReason,
)
from holdfast.names import Holder, holder_shown, readable
from holdfast.observer import DEBUG, debugging, log
from holdfast.rules import trust

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from holdfast.commands import AcquireCommand

# How long the replicas may take to confirm a grant.
_CONFIRM_NS = NS
# After this time, a wait for a lease of this very process may be a deadlock.
_OWN_LEASE_NS = 5 * NS
# A waiter sends its last request when the timeout ends; if the engine is in trouble, the answer may take this much
# longer.
_LAST_REQUEST_NS = 500 * NS_PER_MS


class AlreadyDone(Exception):
    """The engine answered a waiter's last request with a done marker. Only `once` gets this error, and catches it."""

    def __init__(self, marker: DoneMarker) -> None:
        super().__init__(marker)
        self.marker = marker


class AcquireSteps(LeaseCore):
    """The steps from a pending lease to a held one."""

    async def acquire_steps(self, wait_ns: int | None) -> None:
        """Request the lease until it is granted or the timeout ends.

        `wait_ns` is the timeout: `None` waits for ever, 0 tries once (and resends only if the reply was lost).
        """
        client = self.client
        began_ns = client.clock.now_ns()
        until_ns = NEVER_NS if wait_ns is None else began_ns + wait_ns
        # A single try has the wire timeout for its resends; a waiter has the rest of its timeout.
        give_up_ns = began_ns + WIRE_NS if wait_ns == 0 else until_ns
        client.begin(self)
        try:
            # This code sends the first request itself, not through `resend`: usually no other follows, and every
            # Python frame costs time.
            try:
                answer = self._request(began_ns, until_ns, give_up_ns)
                if not isinstance(answer, Ready):
                    answer = await answer
            except Unavailable as error:
                answer = await self._resend_request(until_ns, give_up_ns, error)
            self._reached = True
            if not self._take_grant(answer, give_up_ns):
                await self._wait_in_line(answer, began_ns, until_ns, give_up_ns)
            if self.confirm:
                await self._confirm_grant()
        except BaseException:
            self.undo()
            raise
        keeper = client.keeper
        if self.due_ns < keeper.wakes_before_ns:
            keeper.wake()
        if client.observer is not None or debugging(DEBUG):
            client.emit("granted", self.identity.shown, self._fence, (client.clock.now_ns() - began_ns) / NS)

    async def request_once_steps(self, began_ns: int, until_ns: int = 0) -> Answer:
        """Request the lease once, without a place in the waiting line, and return the engine's answer.

        `Granted` means that the caller holds the lease. If a grant arrives too late, request it again. Until `until_ns`
        the caller waits for an engine that is in trouble or has restarted; it does not wait for another holder.
        """
        give_up_ns = until_ns if until_ns > began_ns else began_ns + WIRE_NS
        while True:
            answer = await self._send_request(began_ns, give_up_ns)
            if not isinstance(answer, Granted) or self._take_grant(answer, give_up_ns):
                return answer
            await self._wait_out(answer, began_ns, max(began_ns, until_ns))

    def _request(self, sent_ns: int, until_ns: int, give_up_ns: int) -> Answer | Awaitable[Answer]:
        """Send the request. After the timeout it is the last one: it asks for the lease, and for no place in line."""
        self._sent_ns = sent_ns
        command = self.acquire_command(sent_ns < until_ns)
        bound_ns = None if give_up_ns == NEVER_NS else max(give_up_ns, sent_ns + _LAST_REQUEST_NS)
        return self.client.transport.apply(command, bound_ns)

    async def _send_request(self, until_ns: int, give_up_ns: int) -> Answer:
        try:
            answer = self._request(self.client.clock.now_ns(), until_ns, give_up_ns)
            if not isinstance(answer, Ready):
                answer = await answer
        except Unavailable as error:
            answer = await self._resend_request(until_ns, give_up_ns, error)
        self._reached = True
        return answer

    async def _resend_request(self, until_ns: int, give_up_ns: int, error: Unavailable) -> Answer:
        """Send the request again, with the same token, until the engine answers. `error`: the error of the first copy.

        If no copy has reached the engine, raise at once. If a copy may have reached it, send further copies until
        `give_up_ns`.
        """
        client = self.client
        return await resend(
            client,
            lambda: self._request(client.clock.now_ns(), until_ns, give_up_ns),
            error,
            give_up_ns,
            policy=PATIENT,
            should_resend=self._should_resend_request,
        )

    def _should_resend_request(self, error: Unavailable, lost: bool, report: bool) -> bool:
        """Return whether a copy may have reached the engine and the error may pass without an operator."""
        if report:
            self.client.emit("unavailable", self.identity.shown, detail=str(error))
        self._resent = self._resent or lost
        self._reached = self._reached or self._resent or error.reason == MOVING
        if not self._reached:
            self._sent_ns = 0  # no copy has arrived, so there is no lease to undo
            return False
        if not reply_lost(error) and error.reason not in PASSING:
            return False
        self._refuse_if_withdrawn()
        return True

    async def _wait_in_line(self, answer: Answer, began_ns: int, until_ns: int, give_up_ns: int) -> None:
        """Wait and request again, until the lease is granted or the timeout ends."""
        client, clock = self.client, self.client.clock
        in_line = False
        try:
            while True:
                next_answer: Answer | None = None
                if isinstance(answer, Granted):
                    await self._wait_out(answer, began_ns, until_ns)
                else:
                    if isinstance(answer, DoneMarker):
                        raise AlreadyDone(answer)
                    if not isinstance(answer, Busy) or answer.position is None:
                        raise self.not_acquired(answer, began_ns)
                    current = self._remember_holder(answer)
                    if not in_line:
                        in_line = True
                        self._refuse_deadlock(answer)
                        client.keeper.start_heartbeat(self, answer.remaining_ms, answer.holder)
                        client.emit("waiting", self.identity.shown, answer.fence, detail=_holder_or_reason(answer))
                    self._refuse_if_withdrawn()
                    sleep_ms = trust.recheck_after_ms(answer.position or 0, answer.remaining_ms, self.ttl_ms)
                    if current:  # otherwise the engine has restarted: request again at once
                        wake_ns = min(until_ns, clock.now_ns() + sleep_ms * NS_PER_MS)
                        next_answer = await self._sleep(self._warn_of_own_lease(answer, began_ns, wake_ns))
                        self._refuse_if_withdrawn()
                if next_answer is None:
                    next_answer = await self._send_request(until_ns, give_up_ns)
                answer = next_answer
                if self._take_grant(answer, give_up_ns):
                    return
        finally:
            if in_line:
                client.keeper.stop_heartbeat(self)

    def _take_grant(self, answer: Answer, give_up_ns: int) -> bool:
        """Hold the lease if the answer grants it. A grant that arrived too late may have expired: return false."""
        if type(answer) is not Granted:
            return False
        client, sent_ns = self.client, self._sent_ns
        now_ns = client.clock.now_ns()
        if now_ns >= sent_ns + trust.spans_ns(self.ttl_ms)[0]:
            if now_ns >= give_up_ns:
                late_s = (now_ns - sent_ns) / NS
                raise Unavailable(client.engine.name, UnavailableReason.STALLED, f"the answer took {late_s:.3f} s")
            return False
        if answer.item:
            self._item_granted(answer)
        if client.engine.restarts and self._guarded_until_ns(answer) > now_ns:
            return False
        if not client.is_open:
            raise Closed
        self._granted(answer.fence, sent_ns)
        return True

    def _refuse_deadlock(self, answer: Busy) -> None:
        """Raise `Deadlock` if this thread or task holds the lease in an open block."""
        if not self.caller or not self._is_own_process(answer):
            return
        for lease in self.client.keeper.live_leases():
            if lease.in_block and lease.caller == self.caller and lease.fence_or_none == answer.fence:
                raise Deadlock(self.name, answer.fence)

    def _warn_of_own_lease(self, answer: Busy, began_ns: int, wake_ns: int) -> int:
        """Return when to wake, at most `wake_ns`: after 5 s, log a warning if this process itself holds the lease."""
        client, warn_ns = self.client, began_ns + _OWN_LEASE_NS
        now_ns = client.clock.now_ns()
        if now_ns >= warn_ns:
            if client.may_warn_of_own_lease(now_ns) and self._is_own_process(answer):
                log.warning(
                    "holdfast: a caller has waited for lease %r for %.1f s, and this process itself holds it (fence "
                    "%s). If the holder waits for that caller, this is a deadlock: release the lease first",
                    readable(self.name),
                    (now_ns - began_ns) / NS,
                    answer.fence,
                )
            return wake_ns
        return min(wake_ns, warn_ns) if self._is_own_process(answer) else wake_ns

    def _is_own_process(self, answer: Busy) -> bool:
        return bool(answer.holder) and Holder.unpacked(answer.holder)[:3] == self.client.holder[:3]

    def _refuse_if_withdrawn(self) -> None:
        """Raise `Closed` if the client closes, or if another thread stopped the candidate that waits."""
        self.client.refuse_if_closing()
        if self.withdrawn:
            raise Closed(CANDIDATE)

    def _guarded_until_ns(self, answer: Granted) -> int:
        identity = self.identity
        return self.client.restart_guard.until_ns(identity.resource, identity.contended, life=answer.life)

    async def _wait_out(self, answer: Granted, began_ns: int, until_ns: int) -> None:
        """Wait before requesting again a grant that the client must not take yet.

        Either the grant arrived too late and may have expired, or the engine has restarted and a previous holder may
        still trust a lease that the engine has forgotten. Each further request keeps the grant alive, so that no other
        client gets the lease either.
        """
        client, now_ns = self.client, self.client.clock.now_ns()
        left_ns = self._guarded_until_ns(answer) - now_ns
        if left_ns <= 0:
            return
        if now_ns >= until_ns:
            waited_s = (now_ns - began_ns) / NS
            raise NotAcquired(self.name, reason="engine restarted", waited=waited_s, remaining=left_ns / NS)
        self._refuse_if_withdrawn()
        renew_ns = trust.spans_ns(self.ttl_ms)[1]
        await client.pause(min(until_ns, now_ns + min(left_ns, renew_ns)))

    def _remember_holder(self, answer: Busy) -> bool:
        """Remember the present holder in case the engine restarts; false if it may have restarted already."""
        client, now_ns = self.client, self.client.clock.now_ns()
        until_ns = now_ns + (answer.all_ms or answer.remaining_ms) * NS_PER_MS
        contended = self.identity.contended
        return client.restart_guard.remember(contended, answer.life or answer.fence, self._sent_ns, until_ns, now_ns)

    async def _confirm_grant(self) -> None:
        """Wait until every known replica has confirmed the grant; otherwise raise, and the caller undoes the grant."""
        client = self.client
        self._sent_ns = sent_ns = client.clock.now_ns()
        until_ns = sent_ns + min(_CONFIRM_NS, trust.spans_ns(self.ttl_ms)[1])
        answer = await send_confirmed(client, self.acquire_command(wait=False), until_ns)
        if not isinstance(answer, Granted) or answer.fence != self._fence or self.state is not HELD:
            raise Unavailable(
                client.engine.name, UnavailableReason.NOT_CONFIRMED, f"lease {self.name!r} was lost in the meantime"
            )
        self._trust_from(sent_ns, self.ttl_ms)

    async def _sleep(self, until_ns: int) -> Answer | None:
        """Sleep until a wake-up or the next check; return an answer if the engine combines the sleep with a request.

        The client sends such a request before the sleep, so the trusted time of a granted lease counts from then.
        """
        client = self.client
        command = cast("AcquireCommand", self.acquire_command(wait=True))
        self._sent_ns = client.clock.now_ns()
        try:
            return await client.transport.wait(command, until_ns)
        except Unavailable as error:
            # The request may have arrived. The next request reports the error, and waits until it passes.
            self._resent = self._resent or reply_lost(error)
            return None

    def not_acquired(self, answer: Answer, began_ns: int) -> HoldfastError:
        """pending -> ended: return the error for a request that the engine refused."""
        client = self.client
        waited_s = (client.clock.now_ns() - began_ns) / NS
        if not isinstance(answer, Busy):
            reason = answer.reason if isinstance(answer, Refused) else repr(answer)
            return self._refusal(reason, waited_s)
        holder = _holder_or_reason(answer) if answer.holder else ""
        why = f"held by {holder}" if holder else answer.reason
        client.emit("refused", self.identity.shown, answer.fence, waited_s, detail=why)
        self.refused()
        refusal = NotAcquired(
            self.name,
            reason=answer.reason,
            holder=holder,
            fence=answer.fence,
            waited=waited_s,
            remaining=answer.remaining_ms / 1000,
            unit=self._unit,
        )
        if answer.holder == client.packed:
            refusal.add_note(
                "this process holds the lease itself; only a lock with reentrant=True can be entered again"
            )
        return refusal


def _holder_or_reason(answer: Busy) -> str:
    """Return the holder's display name; for pools and semaphores (no single holder), the reason instead."""
    return holder_shown(answer.holder) if answer.holder else answer.reason
