"""Admission: may this be done now? Asked once, answered once; an answer that was lost counts as used.

A refusal that is known to hold is given again without asking. When the engine cannot be asked, the limit's policy
answers, and that is told every time; the engine is then asked ever less often, so that an outage costs callers nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import NEVER_NS, NS, NS_PER_US, Seconds, timeout_ns
from holdfast.commands import Hit, LimitDecision, ResetCounter
from holdfast.core.client import ABORTING, CLOSED
from holdfast.core.limit.local import BELIEVED_NS, KNOWN_MAX, PAUSE_MAX_NS
from holdfast.core.resend import send_safely
from holdfast.engines import Capability
from holdfast.errors import Closed, InvalidConfig, RateLimited, Unavailable
from holdfast.names import checked_name, name_of
from holdfast.observer import DEBUG, debugging
from holdfast.rules import Moment
from holdfast.rules.limit import hit as hit_rule
from holdfast.rules.limit import rates, share_of

if TYPE_CHECKING:
    from holdfast.core.client import Client

METHODS = ("window", "gcra")
POLICIES = ("local", "allow", "deny")
LOCAL_SHARE = 0.1

# Keys beyond the bound share one count while the engine is away.
_OTHERS = "others"


class Decision(NamedTuple):
    """Whether it may be done: true if so. All lengths of time are seconds.

    `remaining` of `limit` is left in the window that matters most just now; `retry_after` is more than 0 exactly when
    it was refused; after `reset_after` that window is empty again.
    """

    allowed: bool
    remaining: int
    limit: int
    retry_after: float
    reset_after: float

    def __bool__(self) -> bool:
        return self.allowed


class LimiterBase:
    """What both faces share: the rates, the refusals that hold, and what to do without the engine."""

    def __init__(
        self,
        client: Client,
        rate: str,
        *,
        name: str | None,
        method: str,
        on_unavailable: str,
        local_share: float,
    ) -> None:
        client.refuse_without(Capability.LIMITS)
        self._client = client
        self._rates = rates(rate)
        self.rate = rate
        self.name = checked_name(rate if name is None else name)
        if method not in METHODS:
            raise InvalidConfig("method", method, f"it must be {' or '.join(METHODS)}")
        if on_unavailable not in POLICIES:
            raise InvalidConfig("on_unavailable", on_unavailable, f"it must be one of {', '.join(POLICIES)}")
        if isinstance(local_share, bool) or not isinstance(local_share, int | float) or not 0 < local_share <= 1:
            raise InvalidConfig("local_share", local_share, "it must be a number above 0, and at most 1")
        self._smooth = method == "gcra"
        self._policy = on_unavailable
        self._share = share_of(self._rates, local_share)
        self._least = min(count for count, _ in self._rates)
        self._ledger = client.ledgers.of(self.name, self._rates, smooth=self._smooth)

    def __repr__(self) -> str:
        return f"<limit {self.rate!r} {self.name!r} on {self._client.url}>"

    def _known(self, key: str, cost: int, *, final: bool = True) -> Decision | None:
        """The refusal that is known to hold, if there is one; `final` unless the caller goes on waiting."""
        known = self._ledger.refusals.get(key) if type(key) is str else None
        if known is None or self._client.state is CLOSED:
            return None
        now_ns = self._client.clock.now_ns()
        if now_ns >= known.believed_ns:
            self._ledger.refusals.pop(key, None)
            return None
        if type(cost) is not int or not known.cost <= cost <= self._least:
            return None
        retry_s, reset_s = (known.retry_ns - now_ns) / NS, (known.reset_ns - now_ns) / NS
        if final:
            self._tell_limited(key, retry_s)
        return Decision(False, known.remaining, known.limit, retry_s, reset_s)

    def _tell_limited(self, key: str, retry_s: float) -> None:
        if self._client.observer is not None or debugging(DEBUG):
            self._client.emit("rate_limited", name_of(self.name, key), seconds=retry_s)

    def _command(self, key: str, cost: int, *, take: bool) -> Hit:
        name = name_of(self.name, key)
        if isinstance(cost, bool) or not isinstance(cost, int) or not 1 <= cost <= self._least:
            raise InvalidConfig("cost", cost, f"it must be a whole number of 1 to {self._least}: more could never pass")
        return Hit(name, self._rates, self._smooth, cost, take)

    def _without_engine(self, command: Hit) -> Decision:
        """What the policy says, told each time."""
        if self._policy == "local":
            decision = self._by_share(command)
        else:
            allowed = self._policy == "allow"
            decision = Decision(allowed, 0, self._least, 0.0 if allowed else PAUSE_MAX_NS / NS, 0.0)
        said = "allowed" if decision.allowed else "refused"
        why = f"{said} by policy {self._policy}: {self._ledger.trouble}"
        self._client.emit("unavailable", command.name, detail=why)
        return decision

    def _by_share(self, command: Hit) -> Decision:
        clock, ledger = self._client.clock, self._ledger
        with ledger.guard:
            name = command.name if len(ledger.alone) < KNOWN_MAX else _OTHERS
            # The clock that never goes back: nobody else shares these counts.
            moment = Moment(0, clock.now_ns() // NS_PER_US, "")
            answer = ledger.alone.answer(hit_rule, command._replace(name=name, rates=self._share), moment)
        assert isinstance(answer, LimitDecision)
        return _decision(answer)


async def hit(limiter: LimiterBase, key: str, cost: int, *, take: bool = True, final: bool = True) -> Decision:
    """Ask the engine, once. A refusal is told to the observer, unless it is no last word or only a look."""
    decision = await _decided(limiter, key, cost, take=take)
    if final and take and not decision.allowed:
        limiter._tell_limited(key, decision.retry_after)
    return decision


async def _decided(limiter: LimiterBase, key: str, cost: int, *, take: bool) -> Decision:
    command, client, ledger = limiter._command(key, cost, take=take), limiter._client, limiter._ledger
    if client.state is CLOSED:
        raise Closed
    sent_ns = client.clock.now_ns()
    if sent_ns < ledger.asked_again_ns:
        return limiter._without_engine(command)
    try:
        reply = client.transport.apply(command)
        answer = reply if isinstance(reply, tuple) else await reply
    except Unavailable as error:
        ledger.failed(str(error), client.clock.now_ns())
        return limiter._without_engine(command)
    ledger.answered()
    assert isinstance(answer, LimitDecision)
    if not answer.allowed:
        ledger.believe(key, cost, answer, sent_ns)
    return _decision(answer)


async def counted(limiter: LimiterBase, key: str) -> Decision:
    """What the engine has counted; an error if it cannot be asked. A policy answers programs, people want to know."""
    answer = await send_safely(limiter._client, limiter._command(key, 1, take=False))
    assert isinstance(answer, LimitDecision)
    return _decision(answer)


async def wait(limiter: LimiterBase, key: str, cost: int, timeout: Seconds | None) -> Decision:
    """Ask until it is allowed; `RateLimited` as soon as that cannot be before patience ends."""
    client, wait_ns = limiter._client, timeout_ns(timeout)
    until_ns = NEVER_NS if wait_ns is None else client.clock.now_ns() + wait_ns
    while True:
        decision = limiter._known(key, cost, final=False)
        if decision is None:
            decision = await hit(limiter, key, cost, final=False)
        if decision.allowed:
            return decision
        now_ns, left_ns = client.clock.now_ns(), int(decision.retry_after * NS) + 1
        if now_ns + left_ns > until_ns:
            limiter._tell_limited(key, decision.retry_after)
            raise RateLimited(
                f"{limiter.name}/{key}",
                decision.retry_after,
                decision.remaining,
                decision.limit,
                trouble=limiter._ledger.trouble,
            )
        if client.state is ABORTING:
            raise Closed
        await client.transport.waker().wait(now_ns + min(left_ns, BELIEVED_NS))


async def reset(limiter: LimiterBase, key: str) -> None:
    """Forget what was counted under the key. Others may believe a refusal for a second more."""
    command = Hit(name_of(limiter.name, key), limiter._rates, limiter._smooth, 1, take=False)
    await send_safely(limiter._client, ResetCounter(command.name, command.kind))
    limiter._ledger.refusals.pop(key, None)


def _decision(answer: LimitDecision) -> Decision:
    return Decision(answer.allowed, answer.remaining, answer.limit, answer.retry_us / 1e6, answer.reset_us / 1e6)
