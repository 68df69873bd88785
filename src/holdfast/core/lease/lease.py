"""The lease as its holder sees it: one object from the first question to the end.

A lease is trusted until *the moment before the command was sent* + ttl - margin, on the holder's own clock. Once lost
it stays lost. It belongs to no thread or task and may be handed on.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.clock import NEVER_NS, NS, NS_PER_MS, Seconds, timeout_ns
from holdfast.commands import (
    Acquire,
    AcquireCommand,
    BeginOnce,
    ClaimEntry,
    Command,
    DoneMarker,
    Granted,
    Leave,
    Release,
    ReleaseCommand,
    Renew,
    Undo,
    UndoBorrow,
    WaiterHeartbeat,
)
from holdfast.commands.queue import Join
from holdfast.errors import HoldfastError, LeaseLost, NotAcquired
from holdfast.names import Holder, new_token, readable
from holdfast.observer import log
from holdfast.rules import trust

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.client import Client
    from holdfast.engines import Waker

_RENEW_MIN_NS = trust.RENEW_MIN_MS * NS_PER_MS


def jittered(span_ns: int, dice: int) -> int:
    """Up to a tenth less, by the last digits of a clock: so that no two processes do anything in step for long."""
    return span_ns - span_ns * (dice & 0xFFFF) // 0x9FFFF


def later(span_ns: int, dice: int) -> int:
    """Up to a tenth more, for the same reason."""
    return 2 * span_ns - jittered(span_ns, dice)


ASKING, HELD, ENDING, ENDED, LOST = "asking", "held", "ending", "ended", "lost"


class LeaseBase:
    """What both faces share. `owned` turns true when a caller has it; until then, an error means: undo."""

    # What a new lease starts with. Class attributes, because most leases never change most of them.
    _fence: int | None = None
    _state = ENDED  # until it has one of its own, an interrupted half of a lease is none
    _owned = False
    _reached = False
    _resent = False
    _sent_ns = 0
    _since_ns = 0
    _deadline_ns = 0
    _due_ns = 0
    _doubt_ns = NEVER_NS  # of what may be in doubt without being lost: since when it is
    _why = ("", "")
    _trouble = ""
    _wakers: tuple[Waker, ...] = ()

    def __init__(
        self,
        client: Client,
        name: str,
        ttl_ms: int,
        holder: Holder,
        packed: str,
        on_loss: Callable[[Any], object] | None,
        confirm: bool,
    ) -> None:
        self._client = client
        self.name = name
        self.token = new_token()
        self._ttl_ms = ttl_ms
        self._owner = holder
        self._packed = packed
        self._on_loss = on_loss
        self._confirm = confirm
        self._state = ASKING  # last

    @property
    def fence(self) -> int:
        """How new this lease is: what a protected resource compares. Only grows from holder to holder."""
        if self._fence is None:
            raise RuntimeError("a lease has no fence before it is granted")
        return self._fence

    @property
    def holder(self) -> Holder:
        """Who holds it, for people to read."""
        return self._owner

    @property
    def ttl(self) -> float:
        """How long a grant lasts without renewal, in seconds."""
        return self._ttl_ms / 1000

    def remaining(self) -> float:
        """For how many more seconds the lease can be trusted if nothing renews it; 0 when it is over."""
        if self._state is not HELD:
            return 0.0
        return max(0, self._deadline_ns - self._client.clock.now_ns()) / NS

    def check(self) -> None:
        """Raise `LeaseLost` if the lease cannot be vouched for. Local: costs no round trip."""
        if self._state is HELD and self._client.clock.now_ns() < self._deadline_ns:
            return
        if self._state is HELD:
            self._lose("expired", self._trouble)
        raise self._loss()

    def _is_lost(self) -> bool:
        if self._state is HELD and self._client.clock.now_ns() >= self._deadline_ns:
            self._lose("expired", self._trouble)
        return self._state is LOST

    # What is said to the engine about it. A lease of another kind says it in other words.

    def _ask(self, wait: bool) -> AcquireCommand | BeginOnce | ClaimEntry | Join:
        return Acquire(self.name, self.token, self._packed, self._ttl_ms, wait)

    def _renewal(self, ttl_ms: int) -> Command:
        return Renew(self.name, self.token, ttl_ms)

    def _giving_back(self, to: str) -> ReleaseCommand:
        return Release(self.name, self.token, tombstone=self._resent, to=to)

    def _taking_back(self) -> Undo | UndoBorrow | Leave:
        return Undo(self.name, self.token)

    def _heartbeat_command(self) -> Command:
        return WaiterHeartbeat(self.name)

    def _late(self, command: ReleaseCommand) -> ReleaseCommand | None:
        """What to tell an engine that may still trust a lease that we no longer do, so that the next need not wait."""
        return command

    def _told(self, answer: Granted) -> None:
        """The engine has granted one of many, and says which."""

    def _refusal(self, reason: str, waited_s: float) -> HoldfastError:
        """What to raise where the engine says that this token will never hold."""
        return NotAcquired(self.name, reason=reason, waited=waited_s)

    @property
    def _about(self) -> str:
        """What it is a right to, among all that there is."""
        return self.name

    @property
    def _awaited(self) -> str:
        """What others have while this one waits."""
        return self._about

    @property
    def _known_as(self) -> str:
        """What events call it."""
        return self.name

    @property
    def _place(self) -> str:
        """The name that its commands have."""
        return self.name

    @property
    def _rest_ns(self) -> int:
        """For how long after its end nobody should have it: how the work of a lost holder ended may be uncertain."""
        return 0

    def _closing(self) -> None:
        """The client takes no new work: whoever waits for some by this lease should know."""

    def _wake(self) -> None:
        """Have everyone who waits for something to happen to this lease look again."""
        for waker in self._wakers:
            waker.wake()

    def __repr__(self) -> str:
        return f"<lease {readable(self.name)!r} fence={self._fence} {self._state}>"

    def _granted(self, fence: int, sent_ns: int) -> None:
        self._fence = fence
        self._since_ns = sent_ns
        self._trust_from(sent_ns, self._ttl_ms)
        self._state = HELD  # last: whoever finds it held, as the keeper may at any moment, finds its deadline too

    def _trust_from(self, sent_ns: int, ttl_ms: int) -> None:
        trusted_ns, after_ns = trust.spans_ns(ttl_ms)
        self._deadline_ns = sent_ns + trusted_ns
        self._due_ns = sent_ns + max(_RENEW_MIN_NS, jittered(after_ns, sent_ns))

    def _loss(self) -> LeaseLost:
        reason, detail = self._why if self._state is LOST else ("released", "")
        return LeaseLost(readable(self.name), self._fence, reason, detail=detail)

    def _lose(self, reason: str, detail: str = "", *, since: str = HELD) -> None:
        """The lease is over for its holder: say so once, to everyone who listens.

        `since` is the state in which the caller saw it: what the keeper hears of a lease that is just being released
        is no loss.
        """
        client = self._client
        with client.guard:
            if self._state is not since:
                return
            self._state, self._why = LOST, (reason, detail)
        client.keeper.forget(self)
        self._wake()
        held_s = (client.clock.now_ns() - self._since_ns) / NS
        client.emit("lost", self._known_as, self._fence, held_s, detail=f"{reason} {detail}".strip())
        if self._on_loss is not None:
            client.transport.run_callback(self._call_on_loss)

    def _call_on_loss(self) -> None:
        try:
            if self._on_loss is not None:
                self._on_loss(self)
        except Exception:
            log.exception("on_loss of lease %r failed", self.name)

    def __reduce__(self) -> NoReturn:
        """Two processes would trust one lease, and only one renew it."""
        rule = "it belongs to the process that holds it; send its name and fence, or have the other one take its own"
        raise TypeError(f"a lease cannot be pickled or copied: {rule}")

    def __del__(self) -> None:
        state = self._state
        if (state is not ASKING and state is not HELD) or sys.is_finalizing():
            return
        self._client.keeper.drop(self)
        if self._owned:
            warnings.warn(
                f"lease {readable(self.name)!r} was dropped without a release; it lapses within {self.ttl} s",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


class Compound:
    """A lease whose asking and giving back are parts of larger steps; it stands before the lease among the bases."""

    # What to say instead of plainly asking, without waiting; and instead of plainly giving back.
    _begins: Callable[[Acquire], BeginOnce | ClaimEntry] | None = None
    _ends: Callable[[Release], ReleaseCommand] | None = None

    def _ask(self, wait: bool) -> AcquireCommand | BeginOnce | ClaimEntry:
        ask: Any = super()._ask(wait)  # type: ignore[misc]
        return ask if wait or self._begins is None else self._begins(ask)

    def _giving_back(self, to: str) -> ReleaseCommand:
        end: Any = super()._giving_back(to)  # type: ignore[misc]
        return end if self._ends is None else self._ends(end)


class DoneAlready(Exception):
    """The last word of a waiter was answered with a note. Not for callers: whoever asks with a `BeginOnce` catches it."""

    def __init__(self, known: DoneMarker) -> None:
        super().__init__(known)
        self.known = known


def waited_out(error: BaseException) -> None:
    """Trouble that is told to nobody any more keeps no trace: that leads to the lease, which nobody could drop then.

    Its causes are ours. What it came in the midst of may be the caller's, and stays as it is.
    """
    each: BaseException | None = error
    while each is not None:
        each.__traceback__, each = None, each.__cause__


class LossEventBase:
    """Something that happens once to a lease. True when it has; both faces add a `wait`."""

    __slots__ = ("_happened", "_lease", "_over")

    def __init__(self, lease: LeaseBase, happened: Callable[[], bool], over: Callable[[], bool] | None = None) -> None:
        self._lease = lease
        self._happened = happened
        self._over = over or (lambda: lease._state is ENDED)  # it will not happen any more

    def is_set(self) -> bool:
        return self._happened()

    def __bool__(self) -> bool:
        return self._happened()

    @property
    def reason(self) -> str:
        """Why, in a word: expired, broken, forked, closed. Empty while it has not happened."""
        return self._lease._why[0]

    def __repr__(self) -> str:
        return f"<{'set' if self else 'not set'}{': ' + self.reason if self.reason else ''}>"

    async def _wait(self, timeout: Seconds | None) -> bool:
        lease = self._lease
        client, wait_ns = lease._client, timeout_ns(timeout)
        until_ns = NEVER_NS if wait_ns is None else client.clock.now_ns() + wait_ns
        waker = client.transport.waker()
        with client.guard:
            lease._wakers = (*lease._wakers, waker)
        try:
            while not self._happened():
                if client.clock.now_ns() >= until_ns or self._over():
                    return False
                await waker.wait(min(until_ns, lease._doubt_ns))
            return True
        finally:
            with client.guard:
                lease._wakers = tuple(other for other in lease._wakers if other is not waker)
