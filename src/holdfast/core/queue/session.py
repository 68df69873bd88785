"""The life of a consumer: one lease in its queue, for all messages that it has.

Its token is new for each, and never used again. Where a lock would be lost, this lease is first *in doubt*: it has
lapsed by our own clock, so that nothing can be vouched for, but only the engine knows whether its consumer was taken
for dead. It goes on being renewed. If it was not, the doubt is over; if it was, it is lost for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import NEVER_NS, NS
from holdfast.commands.queue import ConsumerHeartbeat, Join, Leave, ReclaimExpired
from holdfast.core.lease.lease import LeaseBase
from holdfast.core.lease.state import ENDED, HELD, LOST, LeaseIdentity
from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from holdfast.commands import Command
    from holdfast.core.client import Client


class ConsumerSession(LeaseBase):
    """The lease of a consumer."""

    _heard_ns = 0  # when the last word was sent that the engine has answered: it has heard of us since

    def __init__(
        self, client: Client, queue: str, ttl_ms: int, label: str, reaping: ReclaimExpired, *, keeps: bool, heard: bool
    ) -> None:
        self._label = label
        self._reaping = reaping
        self._keeps, self._heard = keeps, heard
        super().__init__(client, queue, ttl_ms, client.holder, client.packed, None, False)

    def __repr__(self) -> str:
        return f"<consumer {self._label!r} of {self.name!r} {self.state}>"

    # Its words to the engine.

    def acquire_command(self, wait: bool) -> Join:  # noqa: ARG002 - nobody stands in its way
        return Join(self.name, self.token, self.packed_holder, self._label, self.ttl_ms, self._keeps, self._heard)

    def renew_command(self, ttl_ms: int) -> Command:
        return ConsumerHeartbeat(self.name, self.token, ttl_ms)

    def release_command(self, to: str) -> Leave:  # noqa: ARG002
        return Leave(self.name, self.token)

    def undo_command(self) -> Leave:
        return Leave(self.name, self.token)

    def heartbeat_command(self) -> Command:
        return self._reaping

    @property
    def identity(self) -> LeaseIdentity:
        """Every name of this session; no other session contends with it."""
        return LeaseIdentity(self.name, f"{self.name}\x00consumer\x00{self.token}", "", self.name, self.name)

    def client_closing(self) -> None:
        self.client.transport.wake(self.token)
        self.wake()  # an owner that may have no more stands in no line

    # Its doubts.

    def _trust_from(self, sent_ns: int, ttl_ms: int) -> None:
        super()._trust_from(sent_ns, ttl_ms)
        self._heard_ns = sent_ns
        # The keeper is not to end it: whether it has ended, the engine says.
        self.doubt_ns, self.deadline_ns = self.deadline_ns, NEVER_NS

    def remaining(self) -> float:
        if self.state is not HELD:
            return 0.0
        return max(0, self.doubt_ns - self.client.clock.now_ns()) / NS

    def check(self) -> None:
        if self.is_lost() or self.state is ENDED:
            raise self.loss()

    def is_lost(self) -> bool:
        return self.state is LOST or self._in_doubt()

    def _in_doubt(self) -> bool:
        return self.state is HELD and self.client.clock.now_ns() >= self.doubt_ns

    def _is_forked(self) -> bool:
        """Whether it is a parent's: the engine cannot tell us apart, so nothing is said under it."""
        return self.loss_reason == "forked"

    def loss(self) -> LeaseLost:
        if self._in_doubt():
            return LeaseLost(self.name, self._fence, "expired", detail=self._trouble)
        return super().loss()
