"""The state machine of a lease: its fields, its states and every transition between them.

A lease is trusted until *the moment before the command was sent* + ttl - margin, on the holder's own clock. A lost
lease stays lost. Only the methods of `LeaseCore` write the state, so a reader finds here every way in which a lease may
end, and why a lease was reported as lost. Two decisions are elsewhere: a consumer session in doubt
(`core/queue/session.py`) and the loss of a single message (`core/queue/message.py`).

The names of this class without a leading underscore are the internal interface of a lease: the keeper, the client and
the features use them. They are not part of the API (see `LeaseBase._internal`).
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.clock import NEVER_NS, NS, NS_PER_MS, jittered
from holdfast.commands import (
    Acquire,
    AcquireCommand,
    BeginOnce,
    ClaimEntry,
    Command,
    NotHeld,
    ReleaseCommand,
    ReleaseLease,
    Renew,
    Undo,
    UndoBorrow,
    WaiterHeartbeat,
)
from holdfast.commands.queue import Join, Leave
from holdfast.core.keeper.reporter import OBSERVER_WAIT_S
from holdfast.errors import HoldfastError, LeaseLost, LossReason, NotAcquired
from holdfast.names import Holder, new_token, readable
from holdfast.observer import DEBUG, debugging, log
from holdfast.rules import trust

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.commands import Answer, Granted
    from holdfast.core.client import Client
    from holdfast.engines import Waker

_RENEW_MIN_NS = trust.RENEW_MIN_MS * NS_PER_MS


class LeaseState(StrEnum):
    """The states of a lease."""

    PENDING = "pending"  # requested, and not granted yet
    HELD = "held"
    RELEASING = "releasing"  # the holder sent a release before the trusted deadline; no answer yet
    ENDED = "ended"  # released, refused or undone
    LOSING = "losing"  # ended, and the observer gets the event; LOST follows, after `OBSERVER_WAIT_S` at the latest
    LOST = "lost"


# Plain names for the hot path: one attribute lookup less.
PENDING: Final = LeaseState.PENDING
HELD: Final = LeaseState.HELD
RELEASING: Final = LeaseState.RELEASING
ENDED: Final = LeaseState.ENDED
LOSING: Final = LeaseState.LOSING
LOST: Final = LeaseState.LOST


class LeaseIdentity(NamedTuple):
    """Every name of one lease. A property computes it: a held lease stores only `name`.

    `name`: the name that the user sees. `resource`: the resource that the lease protects, unique in the client.
    `contended`: the resource that others may hold while this lease waits. Both are keys of the restart guard. `shown`:
    the name in events. `command_name`: the name in its commands.
    """

    name: str
    resource: str
    contended: str
    shown: str
    command_name: str


class LeaseCore:
    """The fields of a lease, and every transition of its state."""

    # The values of a new lease. They are class attributes, because most leases never change most of them.
    state: LeaseState = ENDED  # until `__init__` has finished: an interrupted `__init__` makes no lease
    caller = 0  # the id of the thread or task that acquired the lease, if it is the lease of a lock
    in_block = False  # true while an open block holds the lease: only the same thread or task ends it
    withdrawn = False  # true once another thread has stopped the candidate that waits for this lease
    delivered = False  # true once a caller has the lease; before that, an error undoes the lease
    _unit = "item"  # of a pool; for errors
    since_ns = 0
    deadline_ns = 0
    due_ns = 0
    doubt_ns = NEVER_NS  # since when the lease is in doubt; only a consumer session can be in doubt without being lost
    _fence: int | None = None
    _reached = False  # the engine has answered, or may have received a copy
    _resent = False  # a reply was lost, so an older copy of the acquire may still arrive
    _sent_ns = 0
    _loss_cause: tuple[LossReason | str, str] = ("", "")  # the reason and the detail
    _trouble = ""  # why the last renewal failed
    _wakers: tuple[Waker, ...] = ()

    def __init__(
        self,
        client: Client,
        name: str,
        ttl_ms: int,
        holder: Holder,
        packed_holder: str,
        on_loss: Callable[[Any], object] | None,
        confirm: bool,
    ) -> None:
        self.client = client
        self.name = name
        self.token = new_token()
        self.ttl_ms = ttl_ms
        self._holder = holder
        self.packed_holder = packed_holder
        self.on_loss = on_loss
        self.confirm = confirm
        self.state = PENDING  # last

    @property
    def identity(self) -> LeaseIdentity:
        """Every name of this lease."""
        return LeaseIdentity(self.name, self.name, self.name, self.name, self.name)

    @property
    def fence_or_none(self) -> int | None:
        """The fence; `None` before the lease is granted."""
        return self._fence

    @property
    def was_sent(self) -> bool:
        """Whether a request for this lease may have reached the engine."""
        return bool(self._sent_ns)

    @property
    def loss_reason(self) -> LossReason | str:
        """Why the lease was lost; empty while it was not."""
        return self._loss_cause[0]

    @property
    def trouble(self) -> str:
        """Why the last renewal failed; empty if it succeeded."""
        return self._trouble

    @property
    def cooldown_ns(self) -> int:
        """How long after a loss no other holder should get the resource: the old work may still have effects."""
        return 0

    # The commands of a lease. A lease of another kind overrides them.

    def acquire_command(self, wait: bool) -> AcquireCommand | BeginOnce | ClaimEntry | Join:
        """Return the command that asks for the lease; with `wait`, also for a place in the waiting line."""
        return Acquire(self.name, self.token, self.packed_holder, self.ttl_ms, wait)

    def renew_command(self, ttl_ms: int) -> Command:
        """Return the command that restarts the ttl."""
        return Renew(self.name, self.token, ttl_ms)

    def release_command(self, to: str) -> ReleaseCommand:
        """Return the command that gives the lease back; `to` is the token of the waiter that gets it next."""
        return ReleaseLease(self.name, self.token, tombstone=self._resent, to=to)

    def late_release_command(self, command: ReleaseCommand) -> ReleaseCommand | None:
        """Return the command that frees an untrusted lease on the engine, so that the next holder need not wait."""
        return command

    def undo_command(self) -> Undo | UndoBorrow | Leave:
        """Return the command that ends this token, whether it holds, waits or neither."""
        return Undo(self.name, self.token)

    def heartbeat_command(self) -> Command:
        """Return the heartbeat of this lease's waiters."""
        return WaiterHeartbeat(self.name)

    # Transitions.

    def _granted(self, fence: int, sent_ns: int) -> None:
        """pending -> held."""
        self._fence = fence
        self.since_ns = sent_ns
        self._trust_from(sent_ns, self.ttl_ms)
        self.state = HELD  # last: the keeper may read at any moment, and must find the deadline of a held lease

    def _trust_from(self, sent_ns: int, ttl_ms: int) -> None:
        trusted_ns, after_ns = trust.spans_ns(ttl_ms)
        self.deadline_ns = sent_ns + trusted_ns
        self.due_ns = sent_ns + max(_RENEW_MIN_NS, jittered(after_ns, sent_ns))

    def renewed(self, sent_ns: int, ttl_ms: int) -> None:
        """held -> held: the engine restarted the ttl for a renewal that was sent at `sent_ns`."""
        deadline_ns = self.deadline_ns
        self._trust_from(sent_ns, ttl_ms)
        # If a longer extension came in between, its deadline counts: no engine shortens a lease.
        self.deadline_ns = max(self.deadline_ns, deadline_ns)
        self._trouble = ""

    def extended(self, sent_ns: int, ttl_ms: int) -> None:
        """held -> held, with another ttl from now on."""
        self.ttl_ms = ttl_ms
        self._trust_from(sent_ns, ttl_ms)

    def not_renewed(self, trouble: str, retry_ns: int) -> None:
        """held -> held: the renewal failed; try again at `retry_ns`. An expiry is then explained by `trouble`."""
        self._trouble = trouble
        self.due_ns = retry_ns

    def expire(self, now_ns: int) -> None:
        """held -> lost, if the trusted deadline has passed."""
        if self.state is HELD and self.deadline_ns <= now_ns:
            self.lose(LossReason.EXPIRED, self._trouble)

    def lose(self, reason: str, detail: str = "", *, since: LeaseState = HELD) -> None:
        """held -> losing -> lost: end the lease for its holder, once; see `lose_all`.

        `since`: the state that the caller saw. If the keeper finds a loss while the holder releases the lease, the loss
        does not count.
        """
        lose_all(self.client, ((self, reason, detail),), since=since)

    def begin_loss(self, reason: str, detail: str, since: LeaseState) -> bool:
        """held -> losing, under the guard; return false if the lease was in another state than `since`."""
        if self.state is not since:
            return False
        self.state, self._loss_cause = LOSING, (LossReason(reason), detail)
        return True

    def loss_event(self) -> tuple[str, str, int | None, float, str]:
        """Return the event `lost` of this lease."""
        held_s = (self.client.clock.now_ns() - self.since_ns) / NS
        return "lost", self.identity.shown, self._fence, held_s, " ".join(filter(None, self._loss_cause))

    def end_loss(self) -> None:
        """losing -> lost: wake the waiters, and call `on_loss`."""
        self.state = LOST
        self.wake()
        if self.on_loss is not None:
            self.client.transport.run_callback(self._call_on_loss)

    def forked(self) -> None:
        """any -> lost, in a child process: the lease and its callback belong to the parent."""
        self.on_loss = None
        self.state, self._loss_cause = LOST, (LossReason.FORKED, "")

    def refused(self) -> None:
        """pending -> ended: the engine answered that this token neither holds nor waits.

        If an older copy of the acquire may still arrive, the lease stays pending and the caller must undo it.
        """
        if not self._resent:
            self.state = ENDED
            self.client.keeper.forget(self)

    def withdraw(self) -> None:
        """pending or held -> ended: the caller needs no lease any more. Undo what the engine may have granted."""
        if self._resent or self._fence is not None:
            self.undo()
        self.state = ENDED
        self.client.keeper.forget(self)

    def undo(self) -> None:
        """any -> ended: take back a lease that no caller has.

        The keeper sends the undo, and keeps trying if the engine is unavailable.
        """
        client = self.client
        if self.state is not ENDED:
            client.keeper.undo(self)
            self.state = ENDED
        client.keeper.stop_heartbeat(self)
        client.transport.forget(self.token)
        client.keeper.forget(self)

    def _begin_release(self) -> LeaseState:
        """held -> releasing, only before the trusted deadline; return the previous state."""
        client = self.client
        with client.keeper.guard:
            state = self.state
            if state is HELD and client.clock.now_ns() < self.deadline_ns:
                self.state = RELEASING
        return state

    def _end_release(self, command: ReleaseCommand, answer: Answer | None) -> None:
        """releasing -> ended, or lost if the engine no longer had the lease.

        `answer`: the engine's answer; `None` if there was none, so the keeper must keep sending `command`.
        """
        if isinstance(answer, NotHeld):
            self.lose(answer.reason, answer.detail, since=RELEASING)
            raise LeaseLost(readable(self.name), self._fence, answer.reason, detail=answer.detail)
        client = self.client
        self.state = ENDED
        if self._wakers:
            self.wake()
        if answer is None:
            client.keeper.finish_release(self, command)
            return
        client.keeper.forget(self)
        if client.observer is not None or debugging(DEBUG):
            held_s = (client.clock.now_ns() - self.since_ns) / NS
            client.emit("released", self.identity.shown, self._fence, held_s)

    def end(self, to: str = "") -> None:
        """held or releasing -> ended: the keeper finishes an interrupted release. No effect in other states."""
        if self.state in (HELD, RELEASING):
            self.client.keeper.finish_release(self, self.release_command(to))
            self.state = ENDED
            self.wake()
        self.client.keeper.forget(self)

    # Queries and notifications.

    def is_lost(self) -> bool:
        """Return whether the lease is lost; check the deadline first."""
        if self.state is HELD and self.client.clock.now_ns() >= self.deadline_ns:
            self.lose(LossReason.EXPIRED, self._trouble)
            if self.state is HELD:  # a blocked signal handler keeps this thread from recording the loss
                return self.client.clock.now_ns() >= self.deadline_ns
        if self.state is LOSING:
            if self.client.keeper.reporter.runs_here():  # the observer got the event, and reads the lease
                return self.client.clock.now_ns() >= self.deadline_ns
            until_s = monotonic() + OBSERVER_WAIT_S
            while self.state is LOSING and monotonic() < until_s:
                sleep(0.001)  # another thread tells the observer; not for long, because the observer may block
        return self.state is LOST or self.state is LOSING

    def loss(self) -> LeaseLost:
        """Return the error for a holder that can no longer trust the lease."""
        reason, detail = self._loss_cause
        if not reason:  # released; or lost, and a blocked signal handler keeps this thread from recording the loss
            reason, detail = (LossReason.RELEASED, "") if self.state is ENDED else (LossReason.EXPIRED, self._trouble)
        return LeaseLost(readable(self.name), self._fence, reason, detail=detail)

    def client_closing(self) -> None:
        """React to the start of `close()`. A consumer session overrides this, to stop waiting for messages."""

    def wake(self) -> None:
        """Wake the threads and tasks that wait for an event of this lease."""
        for waker in self._wakers:
            waker.wake()

    def add_waker(self, waker: Waker) -> None:
        """Wake `waker` at each event of this lease."""
        with self.client.guard:
            self._wakers = (*self._wakers, waker)

    def remove_waker(self, waker: Waker) -> None:
        """Stop waking `waker`."""
        with self.client.guard:
            self._wakers = tuple(other for other in self._wakers if other is not waker)

    def _call_on_loss(self) -> None:
        try:
            if self.on_loss is not None:
                self.on_loss(self)
        except BaseException:  # also SystemExit: in asyncio it would end the event loop, and with it all other work
            log.exception("on_loss of lease %r failed", self.name)

    def _item_granted(self, answer: Granted) -> None:
        """Store which item of a pool the engine has granted."""

    def _refusal(self, reason: str, waited_s: float) -> HoldfastError:
        """Return the error for a token that the engine will never grant."""
        return NotAcquired(self.name, reason=reason, waited=waited_s)


def lose_all(client: Client, losses: Sequence[tuple[LeaseCore, str, str]], *, since: LeaseState = HELD) -> None:
    """End leases for their holders, with reason and detail; a lease in another state than `since` stays unchanged.

    The observer gets the events of all losses, then the leases are lost, then each `on_loss` runs. An observer that
    blocks delays the second step by `OBSERVER_WAIT_S` at most.
    """
    guard: Any = client.guard
    owned = guard._is_owned()  # noqa: SLF001 - only the lock knows whether an interrupted acquire took it
    lost: list[LeaseCore] = []
    try:
        try:
            # A blocked signal handler may run on the thread that holds the guard; then the keeper tries again in its
            # next round.
            if not owned and not guard.acquire(timeout=OBSERVER_WAIT_S):
                return
            for lease, reason, detail in losses:
                if lease.begin_loss(reason, detail, since):
                    lost.append(lease)
        finally:
            try:
                if not owned and guard._is_owned():  # noqa: SLF001 - as above
                    guard.release()
            finally:  # an interrupt may hit the first attempt
                if not owned and guard._is_owned():  # noqa: SLF001 - as above
                    guard.release()
        for lease in lost:
            client.keeper.forget(lease)
        if lost:
            reporter = client.keeper.reporter
            reporter.run_and_wait([partial(reporter.emit_here, *lease.loss_event()) for lease in lost])
    finally:  # also if an interrupt ends the wait
        for lease in lost:
            lease.end_loss()
