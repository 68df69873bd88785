"""Assignments: keys that an owner holds, and the events that an owner reports about them.

An outcome of an assignment counts only while the owner still holds the key; the engine checks this in the same step.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.clock import NS
from holdfast.core.queue.message import FINISHED, HeldMessage, MessageBase
from holdfast.errors import LeaseLost, LossReason

if TYPE_CHECKING:
    from holdfast.commands.queue import Delivery, MessageOutcome
    from holdfast.core.ownership.consumer import OwnerConsumer
    from holdfast.core.queue.session import ConsumerSession


@dataclass(frozen=True, slots=True)
class Assigned:
    """Event: this owner now holds the key of `assignment`; or it still does, after an `AssignmentLost` in doubt."""

    assignment: Any


@dataclass(frozen=True, slots=True)
class AssignmentLost:
    """Event: another owner has the key of `assignment`, or may have it, so this owner must stop its work.

    If the engine was only away, and still counts the key as this owner's, `Assigned` follows with the same assignment.
    Otherwise the engine refuses its outcome.
    """

    assignment: Any


@dataclass(frozen=True, slots=True)
class AssignmentExpired:
    """Event: the session of another owner that held `key` has expired.

    No action is needed: some owner gets the key after the grace. `owner.claim(key)` takes the key over at once.
    """

    key: str


@dataclass(frozen=True, slots=True)
class OwnerStopped:
    """Event: the last event of this owner. `reason`: why it stopped; `error`: the error that stopped it, if any."""

    reason: str
    error: Exception | None = None


OwnerEvent = Assigned | AssignmentLost | AssignmentExpired | OwnerStopped


class HeldAssignment(HeldMessage):
    """The internal state of an assignment: a held message, and since when the owner holds it."""

    consumer: OwnerConsumer

    def __init__(self, consumer: OwnerConsumer, session: ConsumerSession, delivery: Delivery, body: Any) -> None:
        super().__init__(consumer, session, delivery, body)
        self._since_ns = consumer.newest_ns = session.client.clock.now_ns()
        self._handed_out = threading.Lock()  # acquired once, by the reader or the claim that gets the assignment

    @property
    def key(self) -> str:
        """The key; for a message without one, its id."""
        return self.stored.key or self.id

    def hand_out(self) -> bool:
        """Return true to the first caller only: an event and a claim never both get the assignment."""
        return self._handed_out.acquire(blocking=False)

    def remaining(self) -> float:
        """Return for how many more seconds the owner can trust the assignment without a heartbeat."""
        return 0.0 if self.gone or self.outcome else self.session.remaining()

    def report_assigned(self) -> None:
        """Emit `assigned`, with the time since the message was published."""
        waited_s = max(0.0, time.time() - self.stored.published_us / 1_000_000)
        self.queue.client.emit("assigned", self.queue.name, self.fence, waited_s, detail=f"key {self.key}")

    def report_ended(self, kind: str, detail: str) -> None:
        """Emit an event about the end of the assignment, with the time for which the owner held the key."""
        client = self.queue.client
        held_s = (client.clock.now_ns() - self._since_ns) / NS
        client.emit(kind, self.queue.name, self.fence, held_s, detail=detail)

    def report_lost(self, reason: str) -> None:
        """Emit `lost`, once."""
        if not self.loss_reported:
            self.loss_reported = True
            self.report_ended("lost", f"{reason} (key {self.key})")

    async def finish(self, outcome: MessageOutcome) -> None:
        """Record the outcome, and emit `lost` if the owner no longer holds the key."""
        try:
            await super().finish(outcome)
        except LeaseLost as lost:
            self.report_lost(lost.reason)
            raise

    def refused(self, outcome: MessageOutcome) -> None:  # noqa: ARG002
        """React to the engine's answer that the owner no longer held the key."""
        self.gone = True
        self.report_lost(LossReason.EXPIRED)

    def report(self, outcome: MessageOutcome) -> None:
        """Emit the events about a recorded outcome; `unassigned` only if the owner does not count the key as lost."""
        super().report(outcome)
        if not self.loss_reported:
            self.report_ended("unassigned", f"key {self.key}: {FINISHED[outcome.kind]}")


class AssignmentBase(MessageBase):
    """A key that this owner holds, with the message that was published for it.

    Its `fence` is larger than every earlier fence of the key.
    """

    _held: HeldAssignment

    @property
    def key(self) -> str:
        """The key; the id of the message if it was published without a key."""
        return self._held.key

    @property
    def token(self) -> str:
        """The token of the owner's session. A guard compares the token together with the fence."""
        return self._held.session.token

    @property
    def info(self) -> Any:
        """The published body."""
        return self.body

    def remaining(self) -> float:
        """Return for how many more seconds the assignment can be trusted without an answer from the engine."""
        return self._held.remaining()

    def __repr__(self) -> str:
        return f"<assignment {self.key!r} of {self.queue!r} fence={self.fence} {self._held.status('owned')}>"
