"""Owners: consumers that keep keys for hours, and report every change as an event.

An owner holds all its keys under one session per queue, so that a thousand keys cost as many commands as one. The owner
learns of its own losses at once. If `events` is set, it also learns of the expiry of others; this only makes recovery
faster.

Memory is bounded. An owner takes no more keys than its limit, and only when the program asks for the next event. Of
events that need no action, the owner keeps a bounded number and counts the rest.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from holdfast.clock import NEVER_NS, NS_PER_MS, jittered
from holdfast.commands import NotHeld
from holdfast.commands.queue import HELD, KeysHeld, ListKeys, NotTakenOver, Received, TakeOver
from holdfast.core.client import OPEN
from holdfast.core.ownership.assignment import (
    Assigned,
    AssignmentExpired,
    AssignmentLost,
    HeldAssignment,
    OwnerStopped,
)
from holdfast.core.ownership.consumer import OwnerConsumer
from holdfast.core.queue.partitions import part_of
from holdfast.core.queue.queue import whole_number
from holdfast.core.resend import WIRE_NS, send_safely
from holdfast.engines import Capability
from holdfast.errors import Closed, InvalidConfig, LeaseLost, LossReason, NotAcquired, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.core.ownership.assignment import OwnerEvent
    from holdfast.core.queue.consumer import Delivered
    from holdfast.core.queue.queue import QueueCore
    from holdfast.core.queue.session import ConsumerSession
    from holdfast.engines import ExpiryWatch, Waker

    # Runs a blocking call so that it does not block an event loop: at once, or on another thread.
    RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]

MOST = 1000
MOST_MAX = 100_000
# How many events that need no action an owner keeps for a slow reader; it never drops assignments.
EVENTS_MAX = 1000
LISTEN, CONFIGURE = "listen", "configure"
STOPPED, CLOSED = "stopped", "closed"
_RETRY_NS = 800 * NS_PER_MS
# The error for a key without a message. An assignment without a key shows its id instead, and an id cannot be claimed.
_NO_MESSAGE = "none was published, or it is done; a message without a key has only an id, and cannot be claimed"


class OwnerCore:
    """An owner of keys, in one queue or in all its partitions. One reader at a time; any thread may end assignments."""

    def __init__(
        self,
        queues: Sequence[QueueCore],
        make_assignment: Callable[[Any], Any],
        *,
        name: str | None,
        most: int,
        events: str | None,
    ) -> None:
        if events not in (None, LISTEN, CONFIGURE):
            raise InvalidConfig("events", events, f"it must be {LISTEN!r}, {CONFIGURE!r} or None")
        self.client = queues[0].client
        self.dropped = 0  # how many events the owner dropped for lack of room
        self.waker: Waker | None = None
        self.ended = False
        self.consumers = [
            OwnerConsumer(
                each,
                make_assignment,
                name=name,
                announce_expiry=bool(events),
                on_lost=self._assignment_lost,
                on_regained=self._assignment_regained,
            )
            for each in queues
        ]
        self._most = whole_number("most", most, 1, MOST_MAX)
        self._events = events
        self._unread: deque[tuple[OwnerEvent, HeldAssignment | None]] = deque()
        self._expired: deque[tuple[str, str]] = deque()  # queue and token of other consumers that expired
        self._listener: ExpiryWatch | None = None
        self._stopped = False
        self._updates = 0  # selects the queue that comes first in each update

    @property
    def name(self) -> str:
        """The name for people to read."""
        return self.consumers[0].name

    @property
    def queue(self) -> str:
        """The name of the first queue."""
        return self.consumers[0].queue.name

    @property
    def assignments(self) -> dict[str, Any]:
        """The assignments, by key."""
        held = [each for consumer in self.consumers for each in tuple(consumer.held.values())]
        return {each.message.key: each.message for each in held}

    @property
    def owned(self) -> int:
        """How many keys the owner holds."""
        return sum(len(consumer.held) for consumer in self.consumers)

    def stop(self) -> None:
        """Take no more keys, and end a wait for events. Any thread may call this."""
        self._stopped = True
        self.wake()

    def wake(self) -> None:
        """End a wait for events."""
        if self.waker is not None:
            self.waker.wake()

    def _assignment_lost(self, delivered: Delivered) -> None:
        self._unread.append((AssignmentLost(delivered.message), None))

    def _assignment_regained(self, delivered: Delivered) -> None:
        self._unread.append((Assigned(delivered.message), None))

    def _consumer_expired(self, queue: str, token: str) -> None:
        """Remember that a consumer expired. The listener's thread calls this method, so it does no I/O."""
        if any(each.session is not None and each.session.token == token for each in self.consumers):
            return
        if len(self._expired) < EVENTS_MAX:
            self._expired.append((queue, token))
            self.wake()
        else:
            self._drop(1)

    def _drop(self, count: int) -> None:
        if count:
            self.dropped += count
            detail = f"AssignmentExpired events: {count}"
            self.client.keeper.reporter.emit("events_dropped", self.queue, detail=detail)

    def _end(self, reason: str, error: Exception | None = None) -> None:
        self.ended = True
        self._unread.append((OwnerStopped(reason, error), None))

    async def enter(self, run_blocking: RunBlocking) -> None:
        """Start a session in every queue, so that an unusable engine raises its error at once."""
        client = self.client
        if self.waker is not None:
            raise RuntimeError(f"owner {self.name!r} is in use: make one owner object for each block")
        if self._events and Capability.EXPIRY_EVENTS not in client.engine.capabilities:
            rule = "this engine has no expiry events: omit the parameter; owners find dead consumers without events"
            raise InvalidConfig("events", self._events, rule)
        self._stopped = self.ended = False
        self.waker = client.transport.waker()
        try:
            for consumer in self.consumers:
                await consumer.enter()
            if self._events:
                self._listener = await run_blocking(self._listen)
        except BaseException:
            await self.leave(run_blocking)
            raise

    def _listen(self) -> ExpiryWatch:
        """Subscribe to the expiry events of all queues. Events about the subscription name the first queue."""
        names = tuple(consumer.queue.name for consumer in self.consumers)

        def emit(kind: str, detail: str) -> None:  # on the listener's thread, which user code must not end
            self.client.keeper.reporter.emit(kind, names[0], detail=detail)

        return self.client.engine.watch_expiries(
            names, configure=self._events == CONFIGURE, on_end=self._consumer_expired, emit=emit
        )

    async def leave(self, run_blocking: RunBlocking) -> None:
        """Give back all keys and end every session. A second call does nothing."""
        listener, self._listener = self._listener, None
        try:
            if listener is not None:
                await run_blocking(listener.close)
        finally:
            await _leave_all(self.consumers)
            self._unread.clear()
            self._expired.clear()
            self.ended, self.waker = True, None

    async def next_event(self, wait_ns: int | None) -> OwnerEvent | None:
        """Return the next event; `None` if none comes before the timeout, or after the last event."""
        clock = self.client.clock
        until_ns = NEVER_NS if wait_ns is None else clock.now_ns() + wait_ns
        if wait_ns == 0:  # this call does not wait for a wake-up, so it must fetch
            _set_woken(self.consumers)
        while (event := self._next_unread()) is None and not self.ended:
            if self.waker is None:
                raise RuntimeError(f"owner {self.name!r} takes keys only inside its `with` block")
            if self._stopped:
                self._end(STOPPED)
                continue
            await self._update_or_end(self.waker)
            if self._unread or self._stopped or self.ended:
                continue
            if clock.now_ns() >= until_ns:
                return None
            await self._sleep(self.waker, until_ns)
        return event

    def _next_unread(self) -> OwnerEvent | None:
        """Return the next event for the reader.

        Skip an assignment that a claim already got, and, in a forked child, the assignments of the parent.
        """
        while self._unread:
            event, held = self._unread.popleft()
            if held is None or (not held.session.is_forked() and held.hand_out()):
                return event
        return None

    async def _update_or_end(self, waker: Waker) -> None:
        try:
            await self._update(waker)
        except Closed:
            self._end(CLOSED)
        except Unavailable as error:
            self._end(str(error), error)

    async def _update(self, waker: Waker) -> None:
        """Find lost assignments, expired owners and available keys; begin with another queue each time."""
        if self.client.state is not OPEN:
            raise Closed
        while self._expired:
            await self._report_expired(*self._expired.popleft())
        self._updates += 1
        for offset in range(len(self.consumers)):
            consumer = self.consumers[(self._updates + offset) % len(self.consumers)]
            consumer.watch_session(waker)
            if self._unread:
                return  # the reader gets the losses before a fetch, which may wait for an engine that is away
            if consumer.must_fetch(self.client.clock.now_ns(), self._most - self.owned):
                await self._fetch(consumer)
                consumer.watch_session(waker)

    async def _fetch(self, consumer: OwnerConsumer) -> None:
        """Fetch keys up to the limit."""
        clock = self.client.clock
        now_ns = clock.now_ns()
        if consumer.draining and not consumer.past_blame_window():
            again_ns = max(consumer.blame_window_ends_ns(), now_ns + consumer.blame_window_ns() // 8)
            consumer.waiting_token, consumer.again_ns = "", again_ns
            return
        room = max(0, self._most - self.owned)
        consumer.full = not room
        if not room and not consumer.woken and not consumer.should_compare(now_ns):
            consumer.waiting_token, consumer.again_ns = "", now_ns + consumer.reconcile_ns
            return
        consumer.woken = True  # until the answer arrives: an interrupted fetch must be repeated
        result = await consumer.fetch(room, wait=room > 0)
        # Queue the events first, so that an interrupt of the following lines loses no event.
        self._unread.extend((Assigned(each.message), _assignment(each)) for each in result.messages)
        consumer.woken = False
        consumer.received(result.messages)
        for each in result.messages:
            _assignment(each).report_assigned()
        consumer.draining = result.drain
        consumer.waiting_token = result.waiting.token if result.waiting is not None else ""
        consumer.again_ns = clock.now_ns() if result.messages else result.again_ns

    async def _report_expired(self, queue: str, token: str) -> None:
        """Add events for the keys that an expired consumer still holds."""
        try:
            answer = await self.client.send(ListKeys(queue, token, EVENTS_MAX))
        except Unavailable as error:
            self.client.emit("unavailable", queue, detail=str(error))
            return
        assert isinstance(answer, KeysHeld)
        self.client.emit("expiry_event", queue, detail=f"of a consumer with {answer.held} keys")
        room = max(0, EVENTS_MAX - sum(isinstance(event, AssignmentExpired) for event, _ in self._unread))
        self._unread.extend((AssignmentExpired(key), None) for key in answer.keys[:room])
        self._drop(max(0, answer.held - room))

    async def _sleep(self, waker: Waker, until_ns: int) -> None:
        """Sleep until a wake-up for a waiting consumer, an event, or the next fetch is due."""
        client = self.client
        now_ns = client.clock.now_ns()
        at_ns = min(until_ns, *(min(each.again_ns, each.doubt_ns(now_ns)) for each in self.consumers))
        waiting = [consumer for consumer in self.consumers if consumer.waiting_token and not consumer.woken]
        try:
            woken = await client.transport.wait_for_any([each.waiting_token for each in waiting], waker, at_ns)
            _set_woken(waiting, woken)
        except Unavailable as error:
            _set_woken(self.consumers)
            client.emit("unavailable", self.queue, detail=str(error))
            now_ns = client.clock.now_ns()
            await waker.wait(now_ns + jittered(_RETRY_NS, now_ns))
        except BaseException:
            _set_woken(self.consumers)  # a wake-up may have arrived with the interrupt
            raise

    async def claim(self, key: str) -> Any:
        """Take over a key now; raise `NotAcquired` if a live consumer holds it.

        The owner hands out an assignment once: to a claim, or as an event. So if one part of a program reads events
        and another part claims, only one of them starts the work.
        """
        consumer = self.consumers[part_of(key, len(self.consumers))]
        if self.waker is None or self.ended:
            when = "no keys after it was stopped" if self.waker is not None else "keys only inside its `with` block"
            raise RuntimeError(f"owner {self.name!r} takes {when}")
        for delivered in tuple(consumer.held.values()):
            held = _assignment(delivered)
            if held.key == key and not held.is_lost():
                return _handed_out(consumer, delivered)
        name, session = consumer.queue.name, consumer.session
        if session is None or not session.is_live():
            detail = "this owner was declared dead, and has no new session yet"
            raise LeaseLost(name, None, LossReason.EXPIRED, detail=detail)
        session.delivered = True
        try:
            answer = await self._take_over(consumer, session, key)
            for each in await consumer.read(session, answer.deliveries):
                _assignment(each).report_assigned()
        except (NotAcquired, NotFound, LeaseLost):
            raise
        except BaseException:
            consumer.lost_answers += 1  # the engine may have assigned the key to this owner: the next fetch finds it
            self.wake()
            raise
        consumer.woken = True  # a take-over ends this consumer's wait on the engine: a waiting reader must fetch again
        self.wake()
        claimed = consumer.held.get(answer.deliveries[0].entry)
        if claimed is None:
            raise NotFound(name, f"readable message of key {key!r}")
        return _handed_out(consumer, claimed)

    async def _take_over(self, consumer: OwnerConsumer, session: ConsumerSession, key: str) -> Received:
        """Send `TakeOver`; return its delivery, or raise the error for a refusal."""
        queue = consumer.queue
        command = TakeOver(queue.name, session.token, key, queue.attempts_max, queue.dead_max)
        answer = await send_safely(self.client, command)
        if isinstance(answer, NotHeld):
            session.lose(answer.reason, answer.detail)
            self.wake()
            raise LeaseLost(queue.name, session.fence_or_none, answer.reason, detail=answer.detail)
        if isinstance(answer, NotTakenOver):
            raise _refusal(queue.name, key, answer)
        assert isinstance(answer, Received)
        if not session.is_live():  # lost while the answer was on its way
            raise session.loss()
        return answer


def _assignment(delivered: Delivered) -> HeldAssignment:
    assert isinstance(delivered.held, HeldAssignment)
    return delivered.held


def _handed_out(consumer: OwnerConsumer, delivered: Delivered) -> Any:
    """Return the assignment; raise `NotAcquired` if the owner has already handed it out, or it is just ending."""
    held = _assignment(delivered)
    if held.outcome or not held.hand_out():
        raise NotAcquired(held.key, reason="ours", holder=consumer.name, fence=held.fence, queue=consumer.queue.name)
    return delivered.message


def _refusal(queue: str, key: str, answer: NotTakenOver) -> NotAcquired | NotFound:
    if answer.place == HELD:
        return NotAcquired(key, reason="owned", holder=answer.label, fence=answer.fence, queue=queue)
    if answer.place:
        return NotAcquired(key, reason=answer.place, queue=queue)
    return NotFound(queue, f"message of key {key!r}: {_NO_MESSAGE}")


def _set_woken(consumers: Sequence[OwnerConsumer], tokens: Sequence[str] | None = None) -> None:
    """Make the consumers with these tokens fetch; without `tokens`, all consumers."""
    for each in consumers:
        each.woken = each.woken or tokens is None or each.waiting_token in tokens


async def _leave_all(consumers: Sequence[OwnerConsumer], *, patient: bool = True) -> None:
    """End each session, even if one fails. Wait only once for an engine that does not answer."""
    if consumers:
        consumer = consumers[0]
        for each in tuple(consumer.held.values()):
            held = _assignment(each)
            if held.session.is_live():
                held.report_ended("unassigned", f"key {held.key}: handed back")
            else:
                held.report_lost(held.session.loss_reason)
        clock = consumer.queue.client.clock
        began_ns = clock.now_ns()
        try:
            await consumer.leave(patient=patient)
        finally:
            soon = clock.now_ns() < began_ns + WIRE_NS - _RETRY_NS
            await _leave_all(consumers[1:], patient=patient and soon)


class OwnerBase:
    """An owner of keys, in one queue or in all its partitions. One reader at a time; any thread may end assignments."""

    def __init__(self, core: OwnerCore) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The name for people to read."""
        return self._core.name

    @property
    def assignments(self) -> dict[str, Any]:
        """The assignments that the owner holds now, by key."""
        return self._core.assignments

    @property
    def owned(self) -> int:
        """How many keys the owner holds."""
        return self._core.owned

    @property
    def dropped(self) -> int:
        """How many `AssignmentExpired` events were dropped because the reader was slow."""
        return self._core.dropped

    def stop(self) -> None:
        """Take no more keys: a reader gets `OwnerStopped` as its last event. Any thread may call this, at any time."""
        self._core.stop()

    def __repr__(self) -> str:
        return f"<owner {self.name!r} of {self._core.queue!r} owned={self.owned}>"
