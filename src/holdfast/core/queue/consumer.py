"""Consumers: receive messages, and recover when something goes wrong.

A consumer has one session at a time. If the session is lost, the consumer starts a new one by itself, and other
consumers receive the messages of the lost session. A consumer waits while the engine is unavailable. After an answer
may have been lost, the consumer sends the entries that it knows it holds, so that it sees every message that it holds.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.clock import NEVER_NS, NS, NS_PER_MS, jittered
from holdfast.commands import NotHeld
from holdfast.commands.queue import (
    BATCH_MAX,
    REJECT,
    MessageOutcome,
    OutcomesRecorded,
    Receive,
    Received,
    RecordOutcomes,
)
from holdfast.core.client import OPEN
from holdfast.core.queue.codec import codec_error, unpacked_headers
from holdfast.core.queue.message import HeldMessage
from holdfast.core.queue.outcomes import readable
from holdfast.core.queue.queue import LANES, whole_number
from holdfast.core.queue.session import ConsumerSession
from holdfast.core.resend import PATIENT, WIRE_NS, resend
from holdfast.core.step import Ready
from holdfast.errors import LASTING, UNKNOWN, Closed, InvalidConfig, LeaseLost, Unavailable
from holdfast.interrupts import raise_if_of_signal
from holdfast.names import LABEL_MAX, is_unicode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.commands import Answer
    from holdfast.commands.queue import Delivery
    from holdfast.core.queue.queue import QueueCore

PREFETCH_MAX = 10_000
UNREADABLE = "unreadable"
# How long the keeper keeps sending outcomes to an engine that does not answer.
PENDING_NS = 60 * NS
# A waiting consumer fetches again every sixth of the ttl, within these bounds, in case a wake-up was lost: for example,
# a server that restarted has forgotten its waiters. A consumer with a short ttl recovers sooner.
_RECHECK_MIN_NS, _RECHECK_MAX_NS = NS, 5 * NS
# Only the first waiting consumers fetch when a delay ends; the others get a wake-up.
_DELAY_WATCHERS = 2
# Out of every 7 fetches, 4 try `high` first, 2 `normal` and 1 `low`, so that low-priority messages never starve.
_FIRST_LANES = ("high", "", "high", "low", "high", "", "high")


class Delivered(NamedTuple):
    """A held message, and the message object that the program gets for it."""

    held: HeldMessage
    message: Any


class FetchResult(NamedTuple):
    """The messages of one fetch; if there are none, when to fetch again.

    `waiting`: the command that made the consumer wait on the engine, if it waits. `drain`: the engine asks the consumer
    to finish its messages, because a message in quarantine is ready for it. `answered`: false if the engine did not
    answer.
    """

    messages: list[Delivered]
    waiting: Receive | None
    again_ns: int
    drain: bool = False
    answered: bool = True


class ConsumerCore:
    """One consumer of a queue. One thread or task may receive at a time; any may record outcomes."""

    keeps_messages = announce_expiry = False  # see `Join`
    fair_share = False  # see `Receive`
    reconcile_ns = 10 * NS
    held_class: type[HeldMessage] = HeldMessage

    def __init__(
        self, queue: QueueCore, make_message: Callable[[Any], Any], *, name: str | None, prefetch: int
    ) -> None:
        self.queue = queue
        self.name = checked_label(queue, name)
        self.prefetch = whole_number("prefetch", prefetch, 1, PREFETCH_MAX)
        self.session: ConsumerSession | None = None
        self.held: dict[str, Delivered] = {}  # by entry: messages without an outcome
        self.pending: dict[str, int] = {}  # entries whose outcome the keeper still sends, and until when
        self.interrupted: dict[str, MessageOutcome] = {}  # outcomes whose sending was interrupted
        self.answer_may_be_lost = False  # of a `Receive`: the consumer may hold unseen messages
        self.lost_answers = 0  # how many answers to other commands (`TakeOver`) may have been lost
        self._make_message = make_message
        self._buffer: deque[Delivered] = deque()  # received, and not returned to the user yet
        self._compared_lost_answers = 0  # the value of `lost_answers` at the last comparison with the engine
        self._seen_fence = 0  # the largest fence of this session, if messages come only by `Receive`
        self._compared_ns = 0  # when the entries were last compared with the engine
        self._restarts = queue.client.engine.restarts
        self._stopped = False
        self._entered = False
        self._fetches = 0  # the number of fetches, which selects the first lane

    def stop(self) -> None:
        """Receive no more, and end a wait for messages. Any thread and any signal handler may call this."""
        self._stopped = True
        self.wake()

    def wake(self) -> None:
        """End a wait for messages."""
        session = self.session
        if session is not None:
            self.queue.client.transport.wake(session.token)

    def forget(self, held: HeldMessage) -> None:
        """Remove a message that has its outcome, or is lost."""
        self.held.pop(held.entry, None)

    def message_lost(self, delivered: Delivered) -> None:
        """React to the engine's answer that the consumer no longer holds a message."""

    def quarantine_max(self, now_ns: int) -> int:  # noqa: ARG002
        """Return how many messages in quarantine to accept: one, if the consumer holds no other message."""
        return int(not self.held)

    def answer_until_ns(self, now_ns: int) -> int | None:  # noqa: ARG002
        """Return until when to wait for the answer to a fetch; `None` for the wire timeout."""
        return None

    def _lanes(self) -> tuple[str, ...]:
        """Return all lanes: the first by `_FIRST_LANES`, the others by urgency."""
        self._fetches += 1
        first = _FIRST_LANES[self._fetches % len(_FIRST_LANES)]
        return (first, *(lane for lane in LANES.values() if lane != first))

    def should_compare(self, now_ns: int) -> bool:
        """Return whether to compare the held entries with the engine."""
        if (
            self.answer_may_be_lost
            or self.lost_answers != self._compared_lost_answers
            or self.queue.client.engine.restarts != self._restarts
        ):
            return True
        return now_ns >= self._compared_ns + self.reconcile_ns

    def known_entries(self, now_ns: int) -> tuple[str, ...] | None:
        """Return the held entries, if it is time to compare them with the engine."""
        if not self.should_compare(now_ns):
            return None
        for entry, until_ns in tuple(self.pending.items()):  # a copy: other threads add to the dictionary
            if until_ns <= now_ns:
                self.pending.pop(entry, None)
        return (*self.held, *self.pending)

    async def enter(self) -> None:
        """Start the session, so that an unusable engine raises its error at once."""
        if self._entered:
            raise RuntimeError(f"consumer {self.name!r} is in use: make one consumer object for each block")
        self._entered = True
        try:
            await self._live_session()
        except BaseException:
            self._entered = False
            raise

    async def _live_session(self) -> ConsumerSession:
        """Return the present session, or a new one if the last was lost."""
        if self.session is not None and self.session.is_live():
            return self.session
        queue, client = self.queue, self.queue.client
        session = ConsumerSession(
            client,
            queue.name,
            queue.ttl_ms,
            self.name,
            queue.reclaim_command(),
            keeps_messages=self.keeps_messages,
            announce_expiry=self.announce_expiry,
        )
        try:
            await session.acquire_steps(0)
            client.keeper.schedule_heartbeat(session, client.clock.now_ns())
            if self.session is not None:
                client.keeper.stop_heartbeat(self.session)
            self._drop_buffer()
            self.pending.clear()
            self.interrupted.clear()
            self._seen_fence = -1 if self.keeps_messages else 0
            self.answer_may_be_lost, self._compared_ns, self._restarts = (
                False,
                client.clock.now_ns(),
                client.engine.restarts,
            )
            self.session = session
        except BaseException:
            session.undo()
            raise
        return session

    def _drop_buffer(self) -> None:
        """Drop the buffered messages of a lost session: other consumers receive them.

        Messages that the program has learn of the loss through their session. In a forked child, all messages belong to
        the parent.
        """
        while self._buffer:
            self.forget(self._buffer.popleft().held)
        if self.session is not None and self.session.is_forked():
            self.held.clear()

    async def leave(self, *, patient: bool = True) -> None:
        """Requeue the held messages and end the session.

        The keeper ends the session if the caller is not `patient`, or is interrupted at any point.
        """
        session = self.session
        try:
            self._entered = False
            interrupted, self.interrupted = tuple(self.interrupted.values()), {}
            if session is None or session.is_forked():
                return  # a child process must not requeue the messages of its parent
            if (patient or interrupted) and await self._record_all(session, interrupted) and patient:
                await session.release_steps()
        except LeaseLost:
            return  # the engine declared the consumer dead, so it holds no message to requeue
        finally:
            self.session, self._stopped = None, False
            self._buffer.clear()
            self.held.clear()
            if session is not None:
                session.end()
                session.client.keeper.stop_heartbeat(session)
                session.client.transport.forget(session.token)

    async def _record_all(self, session: ConsumerSession, interrupted: tuple[MessageOutcome, ...]) -> bool:
        """Send the interrupted outcomes; return whether the engine has all outcomes.

        A `Leave` would requeue messages whose outcome the engine lacks. If the outcomes take longer than the wire
        timeout, the keeper keeps sending them, and then ends the session.
        """
        client = self.queue.client
        until_ns = client.clock.now_ns() + WIRE_NS
        if interrupted:
            try:
                await self.record_outcomes(session, interrupted, resent=True)
            except Unavailable as error:
                if error.outcome != UNKNOWN:
                    client.emit("delivery_abandoned", self.queue.name, session.fence_or_none, detail=str(error))
        while client.keeper.has_pending_outcomes(session.token) and client.clock.now_ns() < until_ns:
            await client.transport.waker().wait(client.clock.now_ns() + PATIENT.shortest_ns)
        return not client.keeper.has_pending_outcomes(session.token)

    async def receive(self, most: int, wait_ns: int | None) -> list[Any]:
        """Return up to `most` messages as soon as there is one; none after the timeout, or if the consumer stops."""
        client = self.queue.client
        whole_number("most", most, 1, PREFETCH_MAX)
        until_ns = NEVER_NS if wait_ns is None else client.clock.now_ns() + wait_ns
        if not self._entered:
            raise RuntimeError(f"consumer {self.name!r} receives messages only inside its `with` block")
        taken: list[Delivered] = []
        session = self.session
        try:
            trusted = not self._buffer and session is not None and session.is_live()  # a fetch checks the rest
            if trusted or await self._trust_buffer(until_ns):
                if not self._buffer:
                    await self._fill_buffer(until_ns)
                while self._buffer and len(taken) < most:
                    taken.append(self._buffer.popleft())
            for each in taken:
                each.held.returned = True
            return [each.message for each in taken]
        except BaseException:
            for each in taken:
                each.held.returned = False
            # The program may go on with this consumer: the next call returns the messages that it has not got.
            self._buffer = deque(each for each in self.held.values() if not each.held.returned)
            raise

    async def _fill_buffer(self, until_ns: int) -> None:
        """Fetch until there is a message, the timeout is over, or the consumer stops."""
        client = self.queue.client
        while not self._buffer and self._entered and not self._stopped:
            room = self.prefetch - len(self.held)
            if room <= 0:
                rule = f"all {len(self.held)} messages are unfinished: ack, retry, release or reject some first"
                raise InvalidConfig("prefetch", self.prefetch, rule)
            now_ns = client.clock.now_ns()
            result = await self.fetch(room, wait=now_ns < until_ns)
            self._buffer.extend(result.messages)
            if result.messages or client.clock.now_ns() >= until_ns:
                break
            if not self._stopped:
                await self.sleep(result, until_ns)

    async def _trust_buffer(self, until_ns: int) -> bool:
        """Wait until the engine has answered whether the consumer still holds the buffered messages; drop them if not.

        Return false if the timeout ended, or the consumer stopped, while the session was in doubt.
        """
        client, session = self.queue.client, self.session
        if client.state is not OPEN:
            raise Closed
        while self._buffer and session is not None and session.in_doubt():
            now_ns = client.clock.now_ns()
            if now_ns >= until_ns or self._stopped:
                return False
            await client.transport.waker().wait(min(until_ns, now_ns + PATIENT.shortest_ns))
        if session is not None and not session.is_live():
            self._drop_buffer()
        return True

    async def sleep(self, result: FetchResult, until_ns: int) -> None:
        """Sleep until a message is ready or the next fetch is due. A wake-up that came since the fetch counts."""
        client = self.queue.client
        at_ns = min(until_ns, result.again_ns)
        if result.waiting is None:
            await client.transport.waker().wait(at_ns)
            return
        try:
            await client.transport.wait(result.waiting, at_ns)
        except Unavailable as error:
            client.emit("unavailable", self.queue.name, detail=str(error))
            now_ns = client.clock.now_ns()
            await client.transport.waker().wait(now_ns + jittered(PATIENT.longest_ns, now_ns))

    async def fetch(self, most: int, *, wait: bool) -> FetchResult:
        """Fetch messages once. After a passing error, emit an event; the result says when to fetch again."""
        result = None
        while result is None:
            result = await self._fetch(most, wait=wait)
        return result

    async def _fetch(self, most: int, *, wait: bool) -> FetchResult | None:
        """Fetch messages; return `None` if no fetched message could be decoded, because there may be more."""
        queue, client = self.queue, self.queue.client
        if client.state is not OPEN:
            raise Closed
        try:
            session = await self._live_session()
            now_ns, lost_answers = client.clock.now_ns(), self.lost_answers
            known = self.known_entries(now_ns)
            if most:
                details = (wait, self.quarantine_max(now_ns), known, self._lanes(), self.fair_share)
            else:  # ask only for unseen messages; if there are none, only end the wait, so that the engine wakes others
                most = BATCH_MAX if known is not None else 0
                details = (False, False, known, () if most else self._lanes(), True)
            command = Receive(queue.name, session.token, min(most, BATCH_MAX), *details, self._seen_fence)
            self.answer_may_be_lost = True  # until the answer arrives
            session.delivered = True  # before this line, an interrupt undoes the session
            reply = client.transport.apply(command, self.answer_until_ns(now_ns))
            answer = reply if isinstance(reply, Ready) else await reply
        except Unavailable as error:
            if error.reason in LASTING:
                raise
            client.emit("unavailable", queue.name, detail=str(error))
            now_ns = client.clock.now_ns()
            return FetchResult([], None, now_ns + jittered(PATIENT.longest_ns, now_ns), answered=False)
        if isinstance(answer, NotHeld):
            self.answer_may_be_lost = False
            session.lose(answer.reason, answer.detail)
            return FetchResult([], None, client.clock.now_ns() + PATIENT.shortest_ns, answered=False)

        assert isinstance(answer, Received)
        if known is not None:
            self._compared_ns, self._restarts, self._compared_lost_answers = (
                now_ns,
                client.engine.restarts,
                lost_answers,
            )
            self._report_lost(answer.lost)
        messages = await self.read(session, answer.deliveries)
        self.answer_may_be_lost = False  # not before: after an interrupt, the engine sends the messages again
        if answer.deliveries:
            self._note_fences(answer.deliveries)
            return FetchResult(messages, None, 0, answer.drain) if messages else None
        return FetchResult([], None if answer.position is None else command, self._again_ns(answer), answer.drain)

    def _note_fences(self, deliveries: tuple[Delivery, ...]) -> None:
        """Note the largest fence, after `read`: if an interrupt comes earlier, the engine sends the messages again."""
        if self._seen_fence >= 0:
            for each in deliveries:
                self._seen_fence = max(self._seen_fence, each.fence)

    def _again_ns(self, answer: Received) -> int:
        """Return when to fetch again without a wake-up."""
        now_ns = self.queue.client.clock.now_ns()
        again_ns = now_ns + max(_RECHECK_MIN_NS, min(_RECHECK_MAX_NS, self.queue.ttl_ms * NS_PER_MS // 6))
        if answer.next_ms and (answer.position or 0) < _DELAY_WATCHERS:
            again_ns = min(again_ns, now_ns + answer.next_ms * NS_PER_MS)
        return again_ns

    def _report_lost(self, entries: tuple[str, ...]) -> None:
        """Report known messages that the consumer does not hold on the engine: a failover may have lost the delivery.

        If a message has an outcome, or its outcome is being recorded, the message is missing for that reason: skip it.
        """
        queue = self.queue
        for entry in entries:
            delivered = self.held.get(entry)
            if delivered is not None and not delivered.held.outcome:
                held = delivered.held
                held.gone = True
                self.forget(held)
                self.message_lost(delivered)
                held.session.wake()
                detail = f"expired (message {held.id}: forgotten)"
                queue.client.emit("lost", queue.name, held.fence, detail=detail)

    async def read(self, session: ConsumerSession, deliveries: tuple[Delivery, ...]) -> list[Delivered]:
        """Decode these deliveries and hold them; a message that cannot be decoded becomes a dead letter at once."""
        queue = self.queue
        found: list[Delivered] = []
        unreadable: list[MessageOutcome] = []
        for delivery in deliveries:
            if delivery.entry in self.held:
                continue  # another command has delivered this message in the meantime
            try:
                body = queue.codec.decode(delivery.message.body)
                unpacked_headers(delivery.message.headers)
                held = self.held_class(self, session, delivery, body)
                found.append(Delivered(held, self._make_message(held)))
            except Exception as error:
                raise_if_of_signal(error)
                unreadable.append(MessageOutcome(delivery.entry, REJECT, 0, UNREADABLE, readable(error)))
                detail = f"message {delivery.message.id}: {UNREADABLE}: {codec_error(queue.codec, error)}"
                queue.client.emit("dead_lettered", queue.name, delivery.fence, detail=detail)
        if unreadable:
            try:
                await self.record_outcomes(session, tuple(unreadable))
            except Unavailable as error:
                if error.outcome != UNKNOWN:  # otherwise the keeper sends the outcomes
                    raise
        return [each for each in found if self.held.setdefault(each.held.entry, each) is each]

    async def record_outcomes(
        self,
        session: ConsumerSession,
        outcomes: tuple[MessageOutcome, ...],
        *,
        resent: bool = False,
        keep_sending: bool = True,
    ) -> tuple[str, ...]:
        """Send outcomes to the engine, and return the entries that the consumer no longer held.

        `resent`: an earlier copy may have arrived. After a lost reply, resend until the wire timeout. After that, raise
        `Unavailable`; with `keep_sending`, its outcome is unknown, because the keeper keeps sending.
        """
        queue, client = self.queue, self.queue.client
        restarts, until_ns = client.engine.restarts, client.clock.now_ns() + WIRE_NS
        command = RecordOutcomes(queue.name, session.token, outcomes, queue.dead_max, resent)

        def send() -> Answer | Awaitable[Answer]:
            return client.transport.apply(command, until_ns)

        def answer_to_copy(answer: Answer) -> Answer:
            # No other client takes a message from a live consumer: if an entry is missing, the first copy finished it.
            trusted = session.is_live() and not session.is_lost() and restarts == client.engine.restarts
            return OutcomesRecorded(()) if trusted else answer

        async def second_answer(answer: Answer) -> Answer:
            return answer_to_copy(answer)

        try:
            try:
                reply = send()
                answer = reply if isinstance(reply, Ready) else await reply
                if resent:
                    answer = answer_to_copy(answer)
            except Unavailable as error:
                command = command._replace(resent=True)
                answer = await resend(
                    client, send, error, until_ns, should_resend=_may_pass, second_answer=second_answer, lost=resent
                )
        except Unavailable as error:
            if error.reason in LASTING or not keep_sending:
                raise
            self._record_later(command, answer_to_copy)
            client.emit("release_delayed", queue.name, session.fence_or_none, detail=str(error))
            raise error.with_unknown_outcome() from error
        assert isinstance(answer, OutcomesRecorded)
        return answer.lost

    def _record_later(self, command: RecordOutcomes, answer_to_copy: Callable[[Answer], Answer]) -> None:
        """Let the keeper send outcomes that the engine has not confirmed, and apply the answer to their messages."""
        client = self.queue.client
        unconfirmed: list[tuple[HeldMessage, MessageOutcome]] = []
        for outcome in command.outcomes:
            self.pending[outcome.entry] = client.clock.now_ns() + PENDING_NS
            delivered = self.held.pop(outcome.entry, None)
            if delivered is not None:
                delivered.held.unconfirmed = outcome
                unconfirmed.append((delivered.held, outcome))

        def answered(answer: Answer) -> None:
            answer = answer_to_copy(answer)
            assert isinstance(answer, OutcomesRecorded)
            for held, outcome in unconfirmed:
                self.pending.pop(held.entry, None)
                if held.entry in answer.lost:
                    held.refused(outcome)
                else:
                    held.recorded(outcome)

        client.keeper.deliver_later(command, PENDING_NS, answered)


def _may_pass(error: Unavailable, _lost: bool, _report: bool) -> bool:
    return error.reason not in LASTING


def checked_label(queue: QueueCore, name: str | None) -> str:
    """Return the name of a consumer for people to read; two consumers may have the same one."""
    holder = queue.client.holder
    if name is None:
        return holder.label or f"{holder.host}:{holder.pid}"
    if not isinstance(name, str) or not 0 < len(name) <= LABEL_MAX or not is_unicode(name):
        rule = f"it must be text of 1 to {LABEL_MAX} characters, without unpaired surrogates"
        raise InvalidConfig("name", name, rule)
    return name


class ConsumerBase:
    """One consumer of a queue. One thread or task may receive at a time; any may finish its messages."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The name for people to read."""
        return self._core.name

    @property
    def in_flight(self) -> int:
        """How many unfinished messages the consumer holds."""
        return len(self._core.held)

    def stop(self) -> None:
        """Receive no more, and end a wait for messages. Any thread and any signal handler may call this."""
        self._core.stop()

    def __repr__(self) -> str:
        queue = self._core.queue
        return f"<consumer {self.name!r} of {queue.name!r} on {queue.client.url}>"
