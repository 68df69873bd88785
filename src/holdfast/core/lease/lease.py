"""The lease as its holder sees it: one object from the first request to the end.

A lease belongs to no thread or task: any of them may release it. The module `state` has the state machine, the modules
`acquire` and `release` have the steps.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.clock import NEVER_NS, NS, Seconds, timeout_ns, ttl_ms
from holdfast.commands import NotHeld, Renewed
from holdfast.core.lease.acquire import AcquireSteps
from holdfast.core.lease.release import ReleaseSteps
from holdfast.core.lease.state import ENDED, HELD, PENDING, LeaseCore
from holdfast.core.resend import WIRE_NS, resend
from holdfast.core.step import answer_of
from holdfast.errors import LeaseLost, Unavailable
from holdfast.names import Holder, readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.commands import Acquire, AcquireCommand, Answer, BeginOnce, ClaimEntry, ReleaseCommand, ReleaseLease


class LeaseBase(AcquireSteps, ReleaseSteps):
    """The part of a lease that both faces share."""

    # Names without an underscore that are for the core and not part of the API; `dir()` and the reference hide them.
    _internal: frozenset[str] = frozenset(
        ("client", "ttl_ms", "packed_holder", "on_loss", "confirm", "extend_steps"),
    ).union(name for base in (LeaseCore, AcquireSteps, ReleaseSteps) for name in vars(base) if name[0] != "_")

    @property
    def fence(self) -> int:
        """The fencing token: a number that grows from holder to holder, for a guard at the resource to compare."""
        if self._fence is None:
            raise RuntimeError("a lease has no fence before it is granted")
        return self._fence

    @property
    def holder(self) -> Holder:
        """The process that holds the lease, for people to read."""
        return self._holder

    @property
    def ttl(self) -> float:
        """How long a grant lasts without renewal, in seconds."""
        return self.ttl_ms / 1000

    def remaining(self) -> float:
        """Return for how many more seconds the lease can be trusted if nothing renews it; 0 when it is over."""
        if self.state is not HELD:
            return 0.0
        return max(0, self.deadline_ns - self.client.clock.now_ns()) / NS

    def check(self) -> None:
        """Raise `LeaseLost` if the lease can no longer be trusted. Does no I/O."""
        if self.state is HELD and self.client.clock.now_ns() < self.deadline_ns:
            return
        if self.is_lost() or self.state is not HELD:  # the keeper may have renewed it just now
            raise self.loss()

    async def extend_steps(self, ttl: Seconds) -> None:
        """Make the lease last at least `ttl` from now, and after each renewal; raise `LeaseLost` if it is not held.

        A `ttl` below the present one changes nothing: other threads may rely on the longer one.
        """
        lasts_ms = max(ttl_ms(ttl), self.ttl_ms)
        self.check()
        client, sent_ns = self.client, 0
        until_ns = client.clock.now_ns() + WIRE_NS

        async def send() -> Answer:
            """Renew as the keeper does: with the confirmation of the replicas, if the lease requires that."""
            nonlocal sent_ns
            sent_ns = client.clock.now_ns()
            command = self.renew_command(lasts_ms)
            if not self.confirm:
                return await answer_of(client.transport.apply(command, until_ns))
            (answer,) = await client.transport.confirm((command,), until_ns)
            if isinstance(answer, Unavailable):
                raise answer
            return answer

        try:
            answer = await send()
        except Unavailable as error:
            answer = await resend(client, send, error, until_ns)
        if isinstance(answer, NotHeld):
            self.lose(answer.reason, answer.detail)
            raise LeaseLost(readable(self.name), self._fence, answer.reason, detail=answer.detail)
        if isinstance(answer, Renewed) and self.state is HELD:
            self.extended(sent_ns, lasts_ms)
            client.keeper.wake_by(self.due_ns)
        self.check()

    def __dir__(self) -> list[str]:
        internal = {name for base in type(self).__mro__ for name in vars(base).get("_internal", ())}
        return sorted({*super().__dir__()} - internal)

    def __repr__(self) -> str:
        return f"<lease {readable(self.name)!r} fence={self._fence} {self.state}>"

    def __reduce__(self) -> NoReturn:
        """Refuse: two processes would trust one lease, and only one would renew it."""
        rule = "it belongs to the process that holds it; send its name and fence, or acquire one in the other process"
        raise TypeError(f"a lease cannot be pickled or copied: {rule}")

    def __del__(self) -> None:
        state = self.state
        if (state is not PENDING and state is not HELD) or sys.is_finalizing():
            return
        self.client.keeper.drop(self)
        if self.delivered:
            warnings.warn(
                f"lease {readable(self.name)!r} was dropped without a release; it expires within {self.ttl} s",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


class CombinedLease:
    """A lease whose acquire and release are parts of larger commands. List it before the lease among the bases."""

    _internal = frozenset(("begin_with", "end_with"))
    # Functions that make the larger command: from an acquire that does not wait, and from a release.
    begin_with: Callable[[Acquire], BeginOnce | ClaimEntry] | None = None
    end_with: Callable[[ReleaseLease], ReleaseCommand] | None = None

    def acquire_command(self, wait: bool) -> AcquireCommand | BeginOnce | ClaimEntry:
        """Return the acquire; without `wait`, as part of the larger command."""
        acquire: Any = super().acquire_command(wait)  # type: ignore[misc]
        return acquire if wait or self.begin_with is None else self.begin_with(acquire)

    def release_command(self, to: str) -> ReleaseCommand:
        """Return the release as part of the larger command, if there is one."""
        release: Any = super().release_command(to)  # type: ignore[misc]
        return release if self.end_with is None else self.end_with(release)


class LossEventBase:
    """An event that happens at most once to a lease. True when it has happened; both faces add a `wait`."""

    __slots__ = ("_happened", "_lease", "_over")

    def __init__(self, lease: LeaseBase, happened: Callable[[], bool], over: Callable[[], bool] | None = None) -> None:
        self._lease = lease
        self._happened = happened
        self._over = over or (lambda: lease.state is ENDED)  # from then on the event cannot happen

    def is_set(self) -> bool:
        """Return whether the event has happened."""
        return self._happened()

    def __bool__(self) -> bool:
        return self._happened()

    @property
    def reason(self) -> str:
        """The `LossReason`, such as expired, broken, forked or closed. Empty while the lease is not lost."""
        return self._lease.loss_reason

    def __repr__(self) -> str:
        return f"<{'set' if self else 'not set'}{': ' + self.reason if self.reason else ''}>"

    async def _wait(self, timeout: Seconds | None) -> bool:
        lease = self._lease
        client, wait_ns = lease.client, timeout_ns(timeout)
        until_ns = NEVER_NS if wait_ns is None else client.clock.now_ns() + wait_ns
        waker = client.transport.waker()
        lease.add_waker(waker)
        try:
            while not self._happened():
                if client.clock.now_ns() >= until_ns or self._over():
                    return False
                await waker.wait(min(until_ns, lease.doubt_ns))
            return True
        finally:
            lease.remove_waker(waker)
