"""Messages: one delivery of a message to a consumer, until its outcome is recorded.

The engine decides which consumer holds a message. An outcome carries the token of the consumer's session and the entry
of the message. If another consumer holds the message by now, the outcome changes nothing, and its method raises
`LeaseLost`. A method returns only after the engine has recorded the outcome. If the engine does not answer in time, the
keeper keeps sending the outcome, and the method raises an error: the library never reports a success that it does not
know.

`HeldMessage` is the internal state of a delivery. Programs get a `Message`, which wraps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.clock import duration_ms
from holdfast.commands.queue import ACK, REJECT, RELEASE, RETRY, VERIFY, MessageOutcome
from holdfast.core.lease.state import ENDED, RELEASING
from holdfast.core.queue.codec import unpacked_headers
from holdfast.core.queue.outcomes import Reject, Release, Retry, checked_reason, failed_attempt, outcome_of, readable
from holdfast.errors import HoldfastError, LeaseLost, LossReason, NotOwner, Unavailable
from holdfast.interrupts import raise_if_of_signal

if TYPE_CHECKING:
    from holdfast.clock import Seconds
    from holdfast.commands.queue import Delivery
    from holdfast.core.queue.consumer import ConsumerCore
    from holdfast.core.queue.queue import QueueCore
    from holdfast.core.queue.session import ConsumerSession


FINISHED = {ACK: "acked", RETRY: "retried", RELEASE: "released", REJECT: "rejected"}


class HeldMessage:
    """One delivery of a message, and its outcome."""

    returned = False  # the program has the message: `receive` returned it

    def __init__(self, consumer: ConsumerCore, session: ConsumerSession, delivery: Delivery, body: Any) -> None:
        self.entry, self.fence, self.quarantined, self.stored = delivery
        self.consumer = consumer
        self.session = session
        self.body = body
        self.outcome = ""  # the kind of the outcome, once it is recorded or being recorded
        self.unconfirmed: MessageOutcome | None = None  # the outcome that the keeper still sends
        self.reported = False  # the observer has the event about the recorded outcome
        self.loss_reported = False  # the handler or the observer knows that the message is lost
        self.doubt_ns = 0  # the `doubt_ns` of the session for which the worker last called `on_loss`
        self.gone = False  # the consumer no longer holds the message: by the engine's answer, or the worker released it

    @property
    def queue(self) -> QueueCore:
        """The queue of the message."""
        return self.consumer.queue

    @property
    def id(self) -> str:
        """The id of the message."""
        return self.stored.id

    @property
    def attempt(self) -> int:
        """The number of this attempt; 1 for the first."""
        return self.stored.attempts + 1

    def is_lost(self) -> bool:
        """Return whether another consumer may have the message: it is gone, or the session is lost, ending or ended.

        A consumer that ends requeues its messages, so a handler that still runs must see its message as lost.
        """
        ending = self.session.state in (RELEASING, ENDED)
        return self.gone or (not self.outcome and (ending or self.session.is_lost()))

    def is_over(self) -> bool:
        """Return whether the message can no longer be lost."""
        return bool(self.outcome) or self.session.state is ENDED

    def check(self) -> None:
        """Raise `LeaseLost` if the message is finished, or another consumer may have it."""
        if self.outcome:
            detail = f"message {self.id} was already {FINISHED[self.outcome]}"
            raise LeaseLost(self.queue.name, self.fence, LossReason.RELEASED, detail=detail)
        self.session.check()
        if self.is_lost():
            raise self.loss()

    def check_unfinished(self) -> None:
        """Raise an error if the message is finished, or belongs to a parent process."""
        if self.outcome:
            raise NotOwner(self.queue.name, f"already {FINISHED[self.outcome]}", message=self.id)
        if self.session.is_forked():
            raise self.session.loss()

    def loss(self) -> LeaseLost:
        """Return the error for a message that the consumer no longer holds, or can no longer trust."""
        detail = f"this consumer no longer holds message {self.id}"
        if self.unconfirmed is not None and not self.gone:
            detail = f"another consumer may have message {self.id}, and the engine has not confirmed its outcome"
        return LeaseLost(self.queue.name, self.fence, LossReason.EXPIRED, detail=detail)

    def status(self, if_held: str) -> str:
        """Return the status for people to read: the outcome, `lost`, or the text `if_held`."""
        return self.outcome or ("lost" if self.is_lost() else if_held)

    def outcome_for(self, error: BaseException | None) -> MessageOutcome:
        """Return the outcome for the error that ended the work; an ack for `None`."""
        queue = self.queue
        settings = (self.entry, self.attempt, queue.attempts_max, queue.backoff)
        try:
            outcome = outcome_of(*settings, error)
        except Exception as failure:  # for example a `Retry` whose `delay` the handler changed to an invalid value
            raise_if_of_signal(failure)
            outcome = outcome_of(*settings, failure)
        return outcome._replace(keyed=True) if self.stored.key else outcome

    async def ack(self) -> None:
        """Record that the work is done."""
        await self.finish(MessageOutcome(self.entry, ACK, keyed=bool(self.stored.key)))

    async def retry(self, delay: Seconds | None, reason: str) -> None:
        """Record a failed attempt; the next attempt comes after the delay, or after the queue's backoff."""
        queue = self.queue
        delay_ms = queue.backoff.delay_ms(self.attempt) if delay is None else duration_ms(delay, setting="delay")
        error = checked_reason(reason) if reason else ""
        await self.finish(failed_attempt(self.entry, self.attempt, queue.attempts_max, delay_ms, error))

    async def release(self, delay: Seconds) -> None:
        """Give the message back; no attempt is used."""
        await self.finish(MessageOutcome(self.entry, RELEASE, duration_ms(delay, setting="delay")))

    async def reject(self, reason: str) -> None:
        """Make the message a dead letter."""
        await self.finish(MessageOutcome(self.entry, REJECT, 0, checked_reason(reason)))

    async def verify(self) -> None:
        """Ask the engine whether the consumer still holds the message; raise `LeaseLost` if it does not."""
        self.check_unfinished()
        outcomes = (MessageOutcome(self.entry, VERIFY),)
        if await self.consumer.record_outcomes(self.session, outcomes, keep_sending=False):
            raise self.loss()

    async def leave(self, error: BaseException | None) -> bool:
        """End a `with` block: record the outcome for its error; return true for `Retry`, `Reject` and `Release`."""
        carried = isinstance(error, Retry | Reject | Release)
        if self.outcome or self.unconfirmed is not None:
            return carried
        try:
            await self.finish(self.outcome_for(error))
        except LeaseLost as lost:
            if error is None or carried:
                raise
            if isinstance(error, Exception):
                raise lost from error
            error.add_note(str(lost))
        except Unavailable as unavailable:
            if error is None or carried:
                raise
            error.add_note(str(unavailable))  # the error of the block is the one that its caller expects
        return carried

    async def finish(self, outcome: MessageOutcome) -> None:
        """Record the outcome once; raise `LeaseLost` if another consumer holds the message by now.

        If the engine does not answer in time, raise `LeaseLost` if another consumer may have the message, and otherwise
        `Unavailable` with an unknown outcome. Then only the same outcome is accepted again.
        """
        self.check_unfinished()
        consumer, unconfirmed = self.consumer, self.unconfirmed
        if unconfirmed is not None and unconfirmed.kind != outcome.kind:
            detail = (
                f"sent {unconfirmed.kind!r}, which the engine has not confirmed; call it again, and no other method"
            )
            raise NotOwner(self.queue.name, detail, message=self.id)
        resent = self.entry in consumer.interrupted or unconfirmed is not None
        try:
            self.outcome = outcome.kind
            lost = await consumer.record_outcomes(self.session, (outcome,), resent=resent)
        except BaseException as error:
            self.outcome = ""  # the engine may have recorded the outcome; the caller may try again
            if isinstance(error, Unavailable) and self.unconfirmed is not None and self.is_lost():
                raise self.loss() from error
            if not isinstance(error, HoldfastError):  # an interrupt, or an error of the program's signal handler
                consumer.interrupted[self.entry] = outcome
            raise
        consumer.interrupted.pop(self.entry, None)
        consumer.forget(self)
        self.session.wake()  # end every wait for the loss of this message
        if lost:
            self.gone = True
            raise self.loss()
        self.recorded(outcome)

    def recorded(self, outcome: MessageOutcome) -> None:
        """React to the engine's answer that it has recorded the outcome."""
        self.outcome, self.unconfirmed = outcome.kind, None
        if not self.reported:
            self.reported = True
            self.report(outcome)

    def refused(self, outcome: MessageOutcome) -> None:
        """React to the engine's answer that the consumer no longer held the message; no caller waits for the answer."""
        self.gone = True
        detail = f"expired (this consumer no longer holds message {self.id}; its {outcome.kind} was refused)"
        self.queue.client.emit("lost", self.queue.name, self.fence, detail=detail)

    def report(self, outcome: MessageOutcome) -> None:
        """Emit an event for a failed attempt or a dead letter."""
        client, name = self.queue.client, self.queue.name
        if outcome.kind == REJECT:
            reason = f"{outcome.reason}: {outcome.error}" if outcome.error else outcome.reason
            client.emit("dead_lettered", name, self.fence, detail=f"message {self.id}: {reason}")
        elif outcome.error:
            detail = f"message {self.id}, attempt {self.attempt}: {readable(outcome.error)}"
            client.emit("handler_failed", name, self.fence, detail=detail)


class MessageBase:
    """One delivery of a message. All deliveries of a message have the same `id`; `fence` grows from one to the next.

    `body`: the published body, decoded. `quarantined`: whether the message is delivered alone, because consumers have
    died while they held it.
    """

    def __init__(self, held: HeldMessage) -> None:
        self._held = held
        self.id = held.stored.id
        self.body = held.body
        self.fence = held.fence
        self.quarantined = held.quarantined

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._held.queue.name

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were published beside the body."""
        return unpacked_headers(self._held.stored.headers)

    @property
    def key(self) -> str:
        """The key of the message, or empty. Messages of one key are delivered one after the other."""
        return self._held.stored.key

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first."""
        return self._held.attempt

    @property
    def max_attempts(self) -> int:
        """The maximum number of attempts; if the last one fails, the message becomes a dead letter."""
        return self._held.queue.attempts_max

    @property
    def redelivered(self) -> bool:
        """Whether another consumer may have worked on the message before: an attempt failed, or a consumer died."""
        return self._held.stored.attempts + self._held.stored.crashes > 0

    @property
    def published(self) -> float:
        """When the message was published, in seconds since 1970, by the engine's calendar."""
        return self._held.stored.published_us / 1_000_000

    @property
    def finished(self) -> bool:
        """True once the message was acked, retried, released or rejected."""
        return bool(self._held.outcome)

    def check(self) -> None:
        """Raise `LeaseLost` if the message is finished, or another consumer may have it. Does no I/O."""
        self._held.check()

    def __repr__(self) -> str:
        held = self._held
        return f"<message {self.id} of {self.queue!r} attempt={self.attempt} {held.status('in flight')}>"
