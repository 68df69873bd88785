"""Rate limits: is this action allowed now? One request, one answer; after a lost reply the hit counts as used.

While a refusal is still valid, the limiter repeats it without a request. When the engine is unavailable, the limit's
policy decides, and the limiter emits an event for each such decision. It then tries the engine less and less often, so
that an outage does not slow callers down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import NEVER_NS, NS, NS_PER_US, Seconds, timeout_ns
from holdfast.commands import Hit, LimitDecision, ResetCounter
from holdfast.core.client import CLOSED
from holdfast.core.limit.local import KNOWN_MAX, PAUSE_MAX_NS, REPEAT_MAX_NS
from holdfast.core.resend import send_safely
from holdfast.core.step import Ready
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

# Keys beyond the bound share one count while the engine is unavailable.
_OTHERS = "others"


class Decision(NamedTuple):
    """The decision of a rate limit: true if the action is allowed. Durations are in seconds.

    `remaining` of `limit` is left in the window that is closest to its limit. `retry_after` is above 0 exactly if the
    action was refused. After `reset_after` that window is empty again; its length is `window`. `trouble` is empty if
    the engine decided; otherwise the policy `on_unavailable` decided, and `trouble` says why.
    """

    allowed: bool
    remaining: int
    limit: int
    retry_after: float
    reset_after: float
    window: float
    trouble: str = ""

    def __bool__(self) -> bool:
        return self.allowed


class LimiterBase:
    """A rate limit: its rates, the refusals that are still valid, and the policy while the engine is unavailable."""

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
        self._local_rates = share_of(self._rates, local_share)
        self._smallest_limit, self._smallest_us = min(self._rates)
        self._local = client.local_limits.get(self.name, self._rates, smooth=self._smooth)

    def __repr__(self) -> str:
        return f"<limit {self.rate!r} {self.name!r} on {self._client.url}>"

    def _known_refusal(self, key: str, cost: int, *, final: bool = True) -> Decision | None:
        """Return the last refusal if it is still valid. `final`: emit an event, because the caller does not wait."""
        known = self._local.refusals.get(key) if type(key) is str else None
        if known is None or self._client.state is CLOSED:
            return None
        now_ns = self._client.clock.now_ns()
        if now_ns >= known.repeat_until_ns:
            self._local.refusals.pop(key, None)
            return None
        if type(cost) is not int or not known.cost <= cost <= self._smallest_limit:
            return None
        retry_s, reset_s = (known.retry_ns - now_ns) / NS, (known.reset_ns - now_ns) / NS
        if final:
            self._report_refusal(key, retry_s)
        return Decision(False, known.remaining, known.limit, retry_s, reset_s, known.window_s)

    def _report_refusal(self, key: str, retry_s: float) -> None:
        if self._client.observer is not None or debugging(DEBUG):
            self._client.emit("rate_limited", name_of(self.name, key), seconds=retry_s)

    def _command(self, key: str, cost: int, *, take: bool) -> Hit:
        name = name_of(self.name, key)
        if isinstance(cost, bool) or not isinstance(cost, int) or not 1 <= cost <= self._smallest_limit:
            raise InvalidConfig(
                "cost", cost, f"it must be a whole number of 1 to {self._smallest_limit}: more could never pass"
            )
        return Hit(name, self._rates, self._smooth, cost, take)

    def _without_engine(self, command: Hit) -> Decision:
        """Decide by the policy for an unavailable engine, and emit an event."""
        if self._policy == "local":
            decision = self._decide_locally(command)
        else:
            allowed = self._policy == "allow"
            retry_s = 0.0 if allowed else PAUSE_MAX_NS / NS
            decision = Decision(allowed, 0, self._smallest_limit, retry_s, 0.0, self._smallest_us / 1e6)
        verb = "allowed" if decision.allowed else "refused"
        why = f"{verb} by policy {self._policy}: {self._local.trouble}"
        self._client.emit("unavailable", command.name, detail=why)
        return decision._replace(trouble=self._local.trouble)

    def _decide_locally(self, command: Hit) -> Decision:
        """Count in this process, against its share of the limit."""
        clock, local = self._client.clock, self._local
        with local.guard:
            name = command.name if len(local.counters) < KNOWN_MAX else _OTHERS
            # The monotonic clock is right here, because no other process shares these counts.
            moment = Moment(0, clock.now_ns() // NS_PER_US, "")
            local_command = command._replace(name=name, rates=self._local_rates)
            answer = local.counters.answer(hit_rule, local_command, moment)
        assert isinstance(answer, LimitDecision)
        return _decision(answer)

    async def _hit(self, key: str, cost: int, *, take: bool = True, final: bool = True) -> Decision:
        """Send one hit. Emit an event for a refusal, unless the caller keeps waiting or counts nothing."""
        decision = await self._decide(key, cost, take=take)
        if final and take and not decision.allowed:
            self._report_refusal(key, decision.retry_after)
        return decision

    async def _decide(self, key: str, cost: int, *, take: bool) -> Decision:
        """Ask the engine for a decision; by the policy while the engine is unavailable."""
        command, client, local = self._command(key, cost, take=take), self._client, self._local
        if client.state is CLOSED:
            raise Closed
        sent_ns = client.clock.now_ns()
        if local.trouble and not local.may_probe(sent_ns):
            return self._without_engine(command)
        try:
            reply = client.transport.apply(command)
            answer = reply if isinstance(reply, Ready) else await reply
        except Unavailable as error:
            local.failed(str(error), sent_ns, client.clock.now_ns())
            return self._without_engine(command)
        except BaseException:
            local.probe_ended(sent_ns)  # a cancelled caller has learnt nothing: the next caller probes
            raise
        if local.trouble:
            local.answered()
        if client.outages.open:
            client.answered()
        assert isinstance(answer, LimitDecision)
        if not answer.allowed:
            local.remember_refusal(key, cost, answer, sent_ns)
        return _decision(answer)

    async def _peek_engine(self, key: str) -> Decision:
        """Return the counts of the engine; raise `Unavailable` if it does not answer: the policy does not apply."""
        answer = await send_safely(self._client, self._command(key, 1, take=False))
        assert isinstance(answer, LimitDecision)
        return _decision(answer)

    async def _wait(self, key: str, cost: int, timeout: Seconds | None) -> Decision:
        """Send hits until one is allowed; raise `RateLimited` as soon as it is clear that the timeout ends first."""
        client, wait_ns = self._client, timeout_ns(timeout)
        until_ns = NEVER_NS if wait_ns is None else client.clock.now_ns() + wait_ns
        while True:
            decision = self._known_refusal(key, cost, final=False)
            if decision is None:
                decision = await self._hit(key, cost, final=False)
            if decision.allowed:
                return decision
            now_ns, left_ns = client.clock.now_ns(), int(decision.retry_after * NS) + 1
            if now_ns + left_ns > until_ns:
                self._report_refusal(key, decision.retry_after)
                raise RateLimited(
                    f"{self.name}/{key}",
                    decision.retry_after,
                    decision.remaining,
                    decision.limit,
                    trouble=self._local.trouble,
                )
            client.refuse_if_closing()
            await client.pause(now_ns + min(left_ns, REPEAT_MAX_NS))

    async def _reset(self, key: str) -> None:
        """Delete the counts of the key. Other processes may repeat a refusal for a second more."""
        command = Hit(name_of(self.name, key), self._rates, self._smooth, 1, take=False)
        await send_safely(self._client, ResetCounter(command.name, command.kind))
        self._local.refusals.pop(key, None)


def _decision(answer: LimitDecision) -> Decision:
    retry_s, reset_s, window_s = answer.retry_us / 1e6, answer.reset_us / 1e6, answer.period_us / 1e6
    return Decision(answer.allowed, answer.remaining, answer.limit, retry_s, reset_s, window_s)
