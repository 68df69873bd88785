"""Messages: what a consumer has, until it says what became of it.

Who has a message is the engine's to say. A conclusion is sent under the consumer's incarnation and the message's entry;
where that entry is somebody else's by now, nothing happens but `LeaseLost`. A lost answer is asked for again: under a
lease that never broke, an entry that is gone then was concluded by the first copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.clock import NS, Seconds, duration_ms
from holdfast.commands.queue import ACK, REJECT, RELEASE, VERIFY, MessageOutcome, OutcomesRecorded, RecordOutcomes
from holdfast.core.lease.state import ENDED, HELD, RELEASING
from holdfast.core.queue.codec import unpacked_headers
from holdfast.core.queue.outcomes import Reject, Release, Retry, by_error, checked_reason, readable, retried
from holdfast.core.resend import WIRE_NS, resend
from holdfast.core.step import answer_of
from holdfast.errors import LASTING, LeaseLost, NotOwner, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from holdfast.commands import Answer
    from holdfast.commands.queue import Delivery
    from holdfast.core.queue.consumer import ConsumerBase
    from holdfast.core.queue.queue import QueueBase
    from holdfast.core.queue.session import ConsumerSession

# How long the keeper goes on telling the engine what has become of a message.
OWED_NS = 60 * NS


class MessageBase:
    """One delivery of a message. `id` stays the same over all of them; `fence` grows from one to the next."""

    def __init__(self, consumer: ConsumerBase, lease: ConsumerSession, delivery: Delivery, body: Any) -> None:
        entry, fence, suspect, kept = delivery
        self._consumer = consumer
        self._lease = lease
        self._entry = entry
        self._settled = ""
        self._told_of_loss = False  # a worker has told its handler
        self._doubted_ns = 0  # of which doubt it was
        self._gone = False  # it is not with its consumer: the engine has said so, or it was given back over our head
        self.id = kept.id
        self.body = body
        self.fence = fence
        self.quarantined = suspect
        self._kept = kept

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._consumer._queue.name

    @property
    def headers(self) -> dict[str, str]:
        """What was sent beside the body."""
        return unpacked_headers(self._kept.headers)

    @property
    def key(self) -> str:
        """What it was sent with: messages of one key come one after the other. Empty if there is none."""
        return self._kept.key

    @property
    def attempt(self) -> int:
        """Which attempt this is: 1 for the first."""
        return self._kept.attempts + 1

    @property
    def max_attempts(self) -> int:
        """How many attempts there are; if the last one fails, it becomes a dead letter."""
        return self._consumer._queue._attempts_max

    @property
    def redelivered(self) -> bool:
        """Whether somebody may have worked on it before: an attempt has failed, or a consumer died."""
        return self._kept.attempts + self._kept.crashes > 0

    @property
    def published(self) -> float:
        """When it was sent, in seconds since 1970, by the engine's calendar."""
        return self._kept.published_us / 1_000_000

    @property
    def settled(self) -> bool:
        """Whether it has been said what became of it."""
        return bool(self._settled)

    def check(self) -> None:
        """Raise `LeaseLost` if it is settled, or if somebody else may have it by now. Local: costs no round trip."""
        if self._settled:
            detail = f"message {self.id} has been settled: {self._settled}"
            raise LeaseLost(self.queue, self.fence, "released", detail=detail)
        self._lease.check()
        if self._is_lost():
            raise _lost(self)

    def _is_lost(self) -> bool:
        """A consumer that ends gives back what it has: whoever still works on it must hear that others may have it."""
        given_back = self._lease.state in (RELEASING, ENDED)
        return self._gone or (not self._settled and (given_back or self._lease.is_lost()))

    def _is_over(self) -> bool:
        return bool(self._settled) or self._lease.state is ENDED

    def _outcome(self, error: BaseException | None) -> MessageOutcome:
        queue = self._consumer._queue
        settings = (self._entry, self.attempt, queue._attempts_max, queue._backoff)
        try:
            outcome = by_error(*settings, error)
        except Exception as failure:  # a word that makes no sense is an error like any other
            outcome = by_error(*settings, failure)
        return outcome._replace(keyed=True) if self._kept.key else outcome

    def __repr__(self) -> str:
        return f"<message {self.id} of {self.queue!r} attempt={self.attempt} {self._standing('in flight')}>"

    def _standing(self, ours: str) -> str:
        """For people."""
        return self._settled or ("lost" if self._is_lost() else ours)


async def ack(message: MessageBase) -> None:
    """It is done, and gone."""
    await settle(message, MessageOutcome(message._entry, ACK, keyed=bool(message.key)))


async def retry(message: MessageBase, delay: Seconds | None, reason: str) -> None:
    """This attempt has failed; the next one comes after the delay, or by the queue's backoff."""
    queue = message._consumer._queue
    delay_ms = queue._backoff.delay_ms(message.attempt) if delay is None else duration_ms(delay, setting="delay")
    why = checked_reason(reason) if reason else ""
    await settle(message, retried(message._entry, message.attempt, queue._attempts_max, delay_ms, why))


async def release(message: MessageBase, delay: Seconds) -> None:
    """Given back: no attempt was used."""
    await settle(message, MessageOutcome(message._entry, RELEASE, duration_ms(delay, setting="delay")))


async def reject(message: MessageBase, reason: str) -> None:
    """A dead letter."""
    await settle(message, MessageOutcome(message._entry, REJECT, 0, checked_reason(reason)))


async def verify(message: MessageBase) -> None:
    """Ask the engine whether it is still ours."""
    refuse_if_not_ours(message)
    lost = await conclude(message._consumer._queue, message._lease, (MessageOutcome(message._entry, VERIFY),))
    if lost:
        raise _lost(message)


async def leave(message: MessageBase, error: BaseException | None) -> bool:
    """The end of a block: what became of the message is what became of the work. True if the error was only a word."""
    if not message._settled:
        word = isinstance(error, Retry | Reject | Release)
        try:
            await settle(message, message._outcome(error))
        except LeaseLost as lost:
            if error is None or word:
                raise
            if isinstance(error, Exception):
                raise lost from error
            error.add_note(str(lost))
        return word
    return isinstance(error, Retry | Reject | Release)


async def settle(message: MessageBase, outcome: MessageOutcome) -> None:
    """Say once what became of it; `LeaseLost` if it is somebody else's by now."""
    refuse_if_not_ours(message)
    consumer, before = message._consumer, message._settled
    message._settled = outcome.kind
    again = consumer._unsaid.pop(message._entry, None) is not None
    try:
        lost = await conclude(consumer._queue, message._lease, (outcome,), consumer, again=again)
    except BaseException as error:
        message._settled = before  # nobody knows: it may be said again
        if not isinstance(error, Exception):
            consumer._unsaid[message._entry] = outcome
        raise
    consumer._forget(message)
    message._lease.wake()  # whoever waits for its loss waits no more
    if lost:
        raise _lost(message)
    told(consumer._queue, outcome, message)


def refuse_if_not_ours(message: MessageBase) -> None:
    """Nothing is said of what was settled before, or is a parent's; and no block is entered with it."""
    if message._settled:
        raise NotOwner(message.queue, f"message {message.id} has been settled before: {message._settled}")
    if message._lease._is_forked():
        raise message._lease.loss()


def _lost(message: MessageBase) -> LeaseLost:
    detail = f"message {message.id} is not with this consumer any more"
    return LeaseLost(message.queue, message.fence, "expired", detail=detail)


def told(queue: QueueBase, outcome: MessageOutcome, message: MessageBase) -> None:
    """Tell the observer what did not go well."""
    if outcome.kind == REJECT:
        why = f"{outcome.reason}: {outcome.error}" if outcome.error else outcome.reason
        queue._client.emit("dead_lettered", queue.name, message.fence, detail=f"message {message.id}: {why}")
    elif outcome.error:
        detail = f"message {message.id}, attempt {message.attempt}: {readable(outcome.error)}"
        queue._client.emit("handler_failed", queue.name, message.fence, detail=detail)


async def conclude(
    queue: QueueBase,
    lease: ConsumerSession,
    outcomes: tuple[MessageOutcome, ...],
    consumer: ConsumerBase | None = None,
    *,
    again: bool = False,
) -> tuple[str, ...]:
    """Send what became of these messages; return the entries that this consumer does not have any more.

    `again`: an interrupted call may have sent the same outcomes before. After trouble on the way it sends them again
    for the wire timeout; then, where a consumer is given, the keeper goes on.
    """
    client, restarts = queue._client, queue._client.engine.restarts
    command = RecordOutcomes(queue.name, lease.token, outcomes, queue._dead_max)
    until_ns = client.clock.now_ns() + WIRE_NS

    def send() -> Answer | Awaitable[Answer]:
        return client.transport.apply(command, until_ns)

    async def second_answer(answer: Answer) -> Answer:
        """The engine takes nothing from a live consumer: an entry that is gone was recorded by the first copy."""
        if lease.state is HELD and not lease.is_lost() and restarts == client.engine.restarts:
            return OutcomesRecorded(())
        return answer

    try:
        answer = await answer_of(send())
        answer = await second_answer(answer) if again else answer
    except Unavailable as error:
        try:
            answer = await resend(
                client, send, error, until_ns, goes_on=_outcomes_go_on, second_answer=second_answer, lost=again
            )
        except Unavailable as trouble:
            if consumer is None or trouble.reason in LASTING:
                raise
            client.emit("release_delayed", queue.name, lease.fence_or_none, detail=str(trouble))
            client.keeper.deliver_later(command, OWED_NS)
            consumer._owe(outcomes)
            return ()
    assert isinstance(answer, OutcomesRecorded)
    return answer.lost


def _outcomes_go_on(error: Unavailable, _lost: bool, _report: bool) -> bool:
    return error.reason not in LASTING
