"""A consumer session: the lease of a consumer in its queue, which covers all messages that it holds.

Each session has a new token. When the lease of a lock would be lost, a session is first *in doubt*: its deadline has
passed on the consumer's own clock, so the consumer cannot trust its messages; but only the engine knows whether another
client has reclaimed them. The keeper keeps sending heartbeats. If a heartbeat succeeds, the doubt is over, and no
message is redelivered. If the engine has declared the consumer dead, the session is lost for good.

So a message is not redelivered when a visibility timeout of its own ends, but when the session of its consumer expires
without a heartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import NEVER_NS, NS
from holdfast.commands.queue import ConsumerHeartbeat, Join, Leave, ReclaimExpired
from holdfast.core.lease.lease import LeaseBase
from holdfast.core.lease.state import ENDED, HELD, LeaseIdentity
from holdfast.errors import LeaseLost, LossReason

if TYPE_CHECKING:
    from holdfast.commands import Command
    from holdfast.core.client import Client


class ConsumerSession(LeaseBase):
    """The lease of one consumer."""

    heard_ns = 0  # when the consumer sent the last heartbeat that the engine answered

    def __init__(
        self,
        client: Client,
        queue: str,
        ttl_ms: int,
        label: str,
        reclaim: ReclaimExpired,
        *,
        keeps_messages: bool,
        announce_expiry: bool,
    ) -> None:
        self._label = label
        self._reclaim = reclaim
        self._keeps_messages, self._announce_expiry = keeps_messages, announce_expiry
        super().__init__(client, queue, ttl_ms, client.holder, client.packed, None, False)

    def __repr__(self) -> str:
        return f"<consumer {self._label!r} of {self.name!r} {self.state}>"

    # Commands.

    def acquire_command(self, wait: bool) -> Join:  # noqa: ARG002 - a session never waits for another one
        """Return the command that starts the session."""
        return Join(
            self.name,
            self.token,
            self.packed_holder,
            self._label,
            self.ttl_ms,
            self._keeps_messages,
            self._announce_expiry,
        )

    def renew_command(self, ttl_ms: int) -> Command:
        """Return the heartbeat of the session."""
        return ConsumerHeartbeat(self.name, self.token, ttl_ms)

    def release_command(self, to: str) -> Leave:  # noqa: ARG002
        """Return the command that ends the session and requeues its messages."""
        return Leave(self.name, self.token)

    def undo_command(self) -> Leave:
        """Return the command that ends the session."""
        return Leave(self.name, self.token)

    def heartbeat_command(self) -> Command:
        """Return the command that the keeper sends regularly during the session: a check for dead consumers."""
        return self._reclaim

    @property
    def identity(self) -> LeaseIdentity:
        """Every name of this session. No other session contends for it."""
        return LeaseIdentity(self.name, f"{self.name}\x00consumer\x00{self.token}", "", self.name, self.name)

    def client_closing(self) -> None:
        """Wake a consumer that waits for messages, and an owner that is full and waits for none."""
        self.client.transport.wake(self.token)
        self.wake()

    # Doubt.

    def _trust_from(self, sent_ns: int, ttl_ms: int) -> None:
        super()._trust_from(sent_ns, ttl_ms)
        self.heard_ns = sent_ns
        # The keeper must not end the session at the deadline: the engine decides whether it has ended.
        self.doubt_ns, self.deadline_ns = self.deadline_ns, NEVER_NS

    def remaining(self) -> float:
        """Return for how many more seconds the session can be trusted without a heartbeat."""
        if self.state is not HELD:
            return 0.0
        return max(0, self.doubt_ns - self.client.clock.now_ns()) / NS

    def check(self) -> None:
        """Raise `LeaseLost` if the session is lost, in doubt or ended."""
        if self.is_lost() or self.state is ENDED:
            raise self.loss()

    def is_live(self) -> bool:
        """Return whether the session has started, and neither ended nor been lost; it may be in doubt."""
        return self.state is HELD

    def is_lost(self) -> bool:
        """Return whether the session is lost or in doubt."""
        return super().is_lost() or self.in_doubt()

    def in_doubt(self) -> bool:
        """Return whether the deadline has passed without an answer to a heartbeat."""
        return self.state is HELD and self.client.clock.now_ns() >= self.doubt_ns

    def is_forked(self) -> bool:
        """Return whether the session belongs to a parent process: the child must send nothing under its token."""
        return self.loss_reason == LossReason.FORKED

    def loss(self) -> LeaseLost:
        """Return the error for a consumer that can no longer trust its messages."""
        if self.in_doubt():
            return LeaseLost(self.name, self._fence, LossReason.EXPIRED, detail=self._trouble)
        return super().loss()
