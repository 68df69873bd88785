"""Consumers: who takes messages, and what they do when something goes wrong.

A consumer has one incarnation at a time. If that is lost, it comes back under a new one by itself; what it had is
somebody else's then. It waits out an engine that is in trouble. It knows which entries it has, and says so when an
answer may have been lost, so that nothing is left with it unseen.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.clock import NEVER_NS, NS, NS_PER_MS, jittered
from holdfast.commands import NotHeld
from holdfast.commands.queue import BATCH_MAX, REJECT, MessageOutcome, Receive, Received
from holdfast.core.client import OPEN
from holdfast.core.lease.state import HELD
from holdfast.core.queue.codec import unpacked_headers
from holdfast.core.queue.message import OWED_NS, MessageBase, conclude
from holdfast.core.queue.outcomes import readable
from holdfast.core.queue.queue import LANES, QueueBase, _whole
from holdfast.core.queue.session import ConsumerSession
from holdfast.core.resend import WIRE_NS
from holdfast.errors import LASTING, Closed, InvalidConfig, LeaseLost, Unavailable
from holdfast.names import LABEL_MAX, is_unicode

if TYPE_CHECKING:
    from holdfast.commands.queue import Delivery

PREFETCH_MAX = 10_000
UNREADABLE = "unreadable"
# Whoever waits looks again so often, should a ring get lost: as by a server that has forgotten who waits.
# Every sixth of the ttl, within these bounds: short leases are for those who want to be back soon.
_LOOK_MIN_NS, _LOOK_MAX_NS = NS, 5 * NS
# Only the first of those who wait look when a delay is over; the others are rung.
_WATCHERS = 2
# Which lane comes first: the urgent one four times, the usual one twice, the last one once.
_TURNS = ("high", "", "high", "low", "high", "", "high")
_RETRY_NS, _RETRY_MAX_NS = 50 * NS_PER_MS, 800 * NS_PER_MS


class ReceiveResult(NamedTuple):
    """What a take has brought; when to ask again, if nothing; whether to come back idle.

    `asked`: the question of whoever stands in line now. `answered` is false if the engine said nothing.
    """

    messages: list[Any]
    asked: Receive | None
    again_ns: int
    drain: bool = False
    answered: bool = True


class ConsumerBase:
    """One consumer of a queue. For one thread or task at a time; its messages may be settled by any."""

    _Message: type[MessageBase]
    _keeps = _heard = False  # see `Join`
    _share = False  # see `Receive`
    _reconcile_ns = 10 * NS

    def __init__(self, queue: QueueBase, *, name: str | None, prefetch: int) -> None:
        self._queue = queue
        self.name = checked_label(queue, name)
        self._prefetch = _whole("prefetch", prefetch, 1, PREFETCH_MAX)
        self._lease: ConsumerSession | None = None
        self._with: dict[str, MessageBase] = {}  # by entry: what is here and not settled
        self._owed: dict[str, int] = {}  # entries whose end the keeper still tells, and until when it does
        self._unsaid: dict[str, MessageOutcome] = {}  # what was being said as somebody interrupted it
        self._buffer: deque[MessageBase] = deque()  # those that nobody has asked for yet
        self._unsure = False  # an answer may have been lost
        self._missed = self._made_up = 0  # answers to others that may have been lost; those that were asked for since
        self._inbox = 0  # the largest fence that this incarnation was given, if there is no other way than a take
        self._sure_ns = 0  # when everything here was known for the last time
        self._restarts = queue._client.engine.restarts
        self._stopped = False
        self._entered = False
        self._turn = 0  # how often it has asked: each time another lane may come first

    def __repr__(self) -> str:
        return f"<consumer {self.name!r} of {self._queue.name!r} on {self._queue._client.url}>"

    @property
    def in_flight(self) -> int:
        """How many messages it has that are not settled."""
        return len(self._with)

    def stop(self) -> None:
        """Take no more: whoever waits for messages gets none. Any thread may say so, also in a signal handler."""
        self._stopped = True
        self._stir()

    def _stir(self) -> None:
        lease = self._lease
        if lease is not None:
            self._queue._client.transport.wake(lease.token)

    def _forget(self, message: MessageBase) -> None:
        self._with.pop(message._entry, None)

    def _bereft(self, message: MessageBase) -> None:
        """The engine says that this one is not with it any more."""

    def _owe(self, outcomes: tuple[MessageOutcome, ...]) -> None:
        until_ns = self._queue._client.clock.now_ns() + OWED_NS
        self._owed.update((outcome.entry, until_ns) for outcome in outcomes)

    def _idle(self, now_ns: int) -> int:  # noqa: ARG002
        """How many suspects may come: one, if it would be the only one to blame."""
        return int(not self._with)

    def _lanes(self) -> tuple[str, ...]:
        """All of them, the most urgent first; but of seven times another one comes first in three."""
        self._turn += 1
        first = _TURNS[self._turn % len(_TURNS)]
        return (first, *(lane for lane in LANES.values() if lane != first))

    def _is_unsure(self, now_ns: int) -> bool:
        """Whether it is time to say what is here."""
        if self._unsure or self._missed != self._made_up or self._queue._client.engine.restarts != self._restarts:
            return True
        return now_ns >= self._sure_ns + self._reconcile_ns

    def _known(self, now_ns: int) -> tuple[str, ...] | None:
        """What is here, if it is time to say so."""
        if not self._is_unsure(now_ns):
            return None
        for entry, until_ns in tuple(self._owed.items()):  # in one step: others owe more meanwhile
            if until_ns <= now_ns:
                self._owed.pop(entry, None)
        return (*self._with, *self._owed)


def checked_label(queue: QueueBase, name: str | None) -> str:
    """What a consumer is called, for people: two may have one name."""
    holder = queue._client.holder
    if name is None:
        return holder.label or f"{holder.host}:{holder.pid}"
    if not isinstance(name, str) or not 0 < len(name) <= LABEL_MAX or not is_unicode(name):
        rule = f"it must be text of 1 to {LABEL_MAX} characters, without lone surrogates"
        raise InvalidConfig("name", name, rule)
    return name


async def enter(consumer: ConsumerBase) -> None:
    """Begin to live, so that an engine that cannot be used is told at once."""
    if consumer._entered:
        raise RuntimeError(f"consumer {consumer.name!r} is in use: make one of its own for each block")
    consumer._entered = True
    try:
        await _live(consumer)
    except BaseException:
        consumer._entered = False
        raise


async def _live(consumer: ConsumerBase) -> ConsumerSession:
    """The present incarnation; a new one where the last was lost."""
    lease = consumer._lease
    if lease is not None and lease.state is HELD:
        return lease
    queue = consumer._queue
    client = queue._client
    how = {"keeps": consumer._keeps, "heard": consumer._heard}
    lease = ConsumerSession(client, queue.name, queue._ttl_ms, consumer.name, queue._reaping(), **how)
    try:
        await lease.acquire_steps(0)
        client.keeper.schedule_heartbeat(lease, client.clock.now_ns())
        if consumer._lease is not None:
            client.keeper.stop_heartbeat(consumer._lease)
        _drop_unread(consumer)
        consumer._owed.clear()
        consumer._unsaid.clear()
        consumer._inbox = -1 if consumer._keeps else 0
        consumer._unsure, consumer._sure_ns, consumer._restarts = False, client.clock.now_ns(), client.engine.restarts
        consumer._lease = lease
    except BaseException:
        lease.undo()
        raise
    return lease


def _drop_unread(consumer: ConsumerBase) -> None:
    """What a lost incarnation had unread is somebody else's; what is being worked on hears of it by its own lease.

    In a forked child all of it is the parent's.
    """
    while consumer._buffer:
        consumer._forget(consumer._buffer.popleft())
    if consumer._lease is not None and consumer._lease._is_forked():
        consumer._with.clear()


async def leave(consumer: ConsumerBase, *, patient: bool = True) -> None:
    """Give back what is here, as if it had never been taken, and end. The keeper does it for who has no patience.

    And for whoever is interrupted, from the first line on.
    """
    lease = consumer._lease
    try:
        consumer._entered = False
        unsaid, consumer._unsaid = tuple(consumer._unsaid.values()), {}
        if lease is None or lease._is_forked():
            return  # what a parent has is not for its child to give back
        if (patient or unsaid) and await _said_all(consumer, lease, unsaid) and patient:
            await lease.release_steps()
    except LeaseLost:
        return  # it was taken for dead: there is nothing left to give back
    finally:
        consumer._lease, consumer._stopped = None, False
        consumer._buffer.clear()
        consumer._with.clear()
        if lease is not None:
            lease.end()
            lease.client.keeper.stop_heartbeat(lease)
            lease.client.transport.forget(lease.token)


async def _said_all(consumer: ConsumerBase, lease: ConsumerSession, unsaid: tuple[MessageOutcome, ...]) -> bool:
    """Whether the engine has heard of all that is done: else that would be given back as if it were not.

    If it cannot be told within the wire timeout, the keeper goes on, and gives back the rest after it.
    """
    client = consumer._queue._client
    until_ns = client.clock.now_ns() + WIRE_NS
    if unsaid:
        try:
            await conclude(consumer._queue, lease, unsaid, consumer, again=True)
        except Unavailable as error:
            client.emit("delivery_abandoned", consumer._queue.name, lease.fence_or_none, detail=str(error))
    while client.keeper.has_pending_outcomes(lease.token) and client.clock.now_ns() < until_ns:
        await client.transport.waker().wait(client.clock.now_ns() + _RETRY_NS)
    return not client.keeper.has_pending_outcomes(lease.token)


async def receive(consumer: ConsumerBase, most: int, wait_ns: int | None) -> list[Any]:
    """Up to so many messages, as soon as there is one; none if patience ends, or the consumer is stopped."""
    client = consumer._queue._client
    _whole("most", most, 1, PREFETCH_MAX)
    until_ns = NEVER_NS if wait_ns is None else client.clock.now_ns() + wait_ns
    if not consumer._entered:
        raise RuntimeError(f"consumer {consumer.name!r} takes messages inside its `with` block only")
    if not await _unread_is_ours(consumer, until_ns):
        return []
    while not consumer._buffer and consumer._entered and not consumer._stopped:
        room = consumer._prefetch - len(consumer._with)
        if room <= 0:
            raise InvalidConfig(
                "prefetch", consumer._prefetch, f"all {len(consumer._with)} messages are unsettled: settle some first"
            )
        now_ns = client.clock.now_ns()
        got = await take(consumer, room, wait=now_ns < until_ns)
        consumer._buffer.extend(got.messages)
        if got.messages or client.clock.now_ns() >= until_ns:
            break
        if not consumer._stopped:
            await sleep(consumer, got, until_ns)
    return [consumer._buffer.popleft() for _ in range(min(most, len(consumer._buffer)))]


async def _unread_is_ours(consumer: ConsumerBase, until_ns: int) -> bool:
    """What was taken ahead is handed out only while nobody else may have it. A doubt is waited out: the engine says.

    False if patience has ended, or the consumer was stopped, before it has.
    """
    client, lease = consumer._queue._client, consumer._lease
    if client.state is not OPEN:
        raise Closed
    while consumer._buffer and lease is not None and lease._in_doubt():
        now_ns = client.clock.now_ns()
        if now_ns >= until_ns or consumer._stopped:
            return False
        await client.transport.waker().wait(min(until_ns, now_ns + _RETRY_NS))
    if lease is not None and lease.state is not HELD:
        _drop_unread(consumer)
    return True


async def sleep(consumer: ConsumerBase, got: ReceiveResult, until_ns: int) -> None:
    """Until there is something, or it is time to ask again. A ring that came since the question is not lost."""
    client = consumer._queue._client
    at_ns = min(until_ns, got.again_ns)
    if got.asked is None:
        await client.transport.waker().wait(at_ns)
        return
    try:
        await client.transport.wait(got.asked, at_ns)
    except Unavailable as error:
        client.emit("unavailable", consumer._queue.name, detail=str(error))
        now_ns = client.clock.now_ns()
        await client.transport.waker().wait(now_ns + jittered(_RETRY_MAX_NS, now_ns))


async def take(consumer: ConsumerBase, most: int, *, wait: bool) -> ReceiveResult:
    """Ask once. Trouble that may pass is told, and it is asked again a little later."""
    got = None
    while got is None:
        got = await _take(consumer, most, wait=wait)
    return got


async def _take(consumer: ConsumerBase, most: int, *, wait: bool) -> ReceiveResult | None:
    """`None` if there was something, and none of it could be read: then there may be more."""
    queue = consumer._queue
    client = queue._client
    if client.state is not OPEN:
        raise Closed
    try:
        lease = await _live(consumer)
        now_ns, missed = client.clock.now_ns(), consumer._missed
        known = consumer._known(now_ns)
        if most:
            details = (wait, consumer._idle(now_ns), known, consumer._lanes(), consumer._share)
        else:  # nothing new: what is with it unseen; else it only stands in no line any more, and others are rung
            most = BATCH_MAX if known is not None else 0
            details = (False, False, known, () if most else consumer._lanes(), True)
        asked = Receive(queue.name, lease.token, min(most, BATCH_MAX), *details, consumer._inbox)
        consumer._unsure = True  # until the answer is here
        lease.delivered = True  # before that, whoever is interrupted leaves no consumer behind
        reply = client.transport.apply(asked)
        answer = reply if isinstance(reply, tuple) else await reply
    except Unavailable as error:
        if error.reason in LASTING:
            raise
        client.emit("unavailable", queue.name, detail=str(error))
        now_ns = client.clock.now_ns()
        return ReceiveResult([], None, now_ns + jittered(_RETRY_MAX_NS, now_ns), answered=False)
    consumer._unsure = False
    if isinstance(answer, NotHeld):
        lease.lose(answer.reason, answer.detail)
        return ReceiveResult([], None, client.clock.now_ns() + _RETRY_NS, answered=False)

    assert isinstance(answer, Received)
    if known is not None:
        consumer._sure_ns, consumer._restarts, consumer._made_up = now_ns, client.engine.restarts, missed
        _mourn(consumer, answer.lost)
    messages = await _read(consumer, lease, answer.deliveries)
    if consumer._inbox >= 0:  # after that: whoever is interrupted in it is given them again
        consumer._inbox = max([consumer._inbox, *(each.fence for each in answer.deliveries)])
    if answer.deliveries and not messages:
        return None
    again_ns = client.clock.now_ns() + max(_LOOK_MIN_NS, min(_LOOK_MAX_NS, queue._ttl_ms * NS_PER_MS // 6))
    if answer.next_ms and (answer.position or 0) < _WATCHERS:
        again_ns = min(again_ns, client.clock.now_ns() + answer.next_ms * NS_PER_MS)
    return ReceiveResult(messages, asked if answer.position is not None else None, again_ns, answer.drain)


def _mourn(consumer: ConsumerBase, gone: tuple[str, ...]) -> None:
    """These are not with the consumer, by the engine's account: after a failover it may have forgotten that they were.

    What has been settled meanwhile, or is being settled, is gone for another reason.
    """
    for entry in gone:
        message = consumer._with.get(entry)
        if message is not None and not message._settled:
            message._gone = True
            consumer._forget(message)
            consumer._bereft(message)
            message._lease.wake()
            queue = consumer._queue
            queue._client.emit("lost", queue.name, message.fence, detail=f"expired (message {message.id}: forgotten)")


async def _read(consumer: ConsumerBase, lease: ConsumerSession, deliveries: tuple[Delivery, ...]) -> list[Any]:
    """The messages of these deliveries. What cannot be decoded is a dead letter at once, and nobody stops for it."""
    queue = consumer._queue
    found, bad = [], []
    for delivery in deliveries:
        if delivery.entry in consumer._with:
            continue  # it came by another way just now
        try:
            body = queue._codec.decode(delivery.message.body)
            unpacked_headers(delivery.message.headers)
            found.append(consumer._Message(consumer, lease, delivery, body))
        except Exception as error:
            bad.append(MessageOutcome(delivery.entry, REJECT, 0, UNREADABLE, readable(error)))
            detail = f"message {delivery.message.id}: {UNREADABLE}: {error!r}"
            queue._client.emit("dead_lettered", queue.name, delivery.fence, detail=detail)
    if bad:
        consumer._unsure = True  # whoever interrupts this has seen none of them
        await conclude(queue, lease, tuple(bad), consumer)
        consumer._unsure = False
    return [message for message in found if consumer._with.setdefault(message._entry, message) is message]
